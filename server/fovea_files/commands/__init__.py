"""The commands `predict` and `eval`."""
