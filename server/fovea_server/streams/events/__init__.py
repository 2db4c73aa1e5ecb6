"""Events of streams: a log of them, and their receivers."""
