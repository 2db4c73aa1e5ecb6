"""How requests for tensors wait for an engine, and meet in batches."""
