"""Answers in text: where they stand (`forms`), what they are worth and when two are equal (`quantities`, `symbolic`)."""
