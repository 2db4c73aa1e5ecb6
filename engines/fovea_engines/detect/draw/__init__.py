"""Drawing: one file for each task."""
