"""Rollout engines: one file each; `base` is their interface."""
