"""Records every request: its id, its log line, its duration, and whether it was rejected."""
