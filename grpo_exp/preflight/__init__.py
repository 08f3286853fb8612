"""What a run would meet, looked at before it: a few dozen samples, a few steps that are undone, and what they say."""
