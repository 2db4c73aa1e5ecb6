"""Events of streams: their creation, their log, and their delivery to receivers."""
