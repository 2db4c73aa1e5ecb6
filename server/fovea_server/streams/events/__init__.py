"""Events of streams: their log, and their delivery to receivers."""
