"""Events of streams: detection, log, and delivery to receivers."""
