"""Data sources: one file each; `base` says what a data set is, `order` in which order prompts come."""
