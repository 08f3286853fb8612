"""The answer that runs give together: read their folders, compare them, write it down. Needs no model and no torch."""
