"""Where a run's numbers go: files (the truth), the console and W&B. `base` is the interface they share."""
