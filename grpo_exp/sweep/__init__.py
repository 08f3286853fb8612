"""Searches: the space, the study that remembers the trials, the loop that runs them, and what a job does to be pruned."""
