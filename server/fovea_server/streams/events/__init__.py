"""Events of streams: a log of them, and who is told."""
