"""Commands of streams."""
