"""Lines and zones of a picture, and what objects with ids do there."""
