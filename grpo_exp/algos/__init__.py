"""Algorithms: one file and one class each. `base` says what the loop asks of them."""
