"""Records every request: its id, its line in the log, its time, whether it was refused."""
