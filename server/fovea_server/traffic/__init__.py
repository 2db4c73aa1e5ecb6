"""Records every request: its id, log line and duration, and whether it was rejected."""
