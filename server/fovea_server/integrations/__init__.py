"""APIs of other software."""
