"""Track IDs of objects over the frames of a stream."""
