"""Rewards: one file each. `base` holds what a reward part is and how parts add up."""
