"""What a run shows while it goes: detectors that name what is wrong, since when, why, and what to change."""
