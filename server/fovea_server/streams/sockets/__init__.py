"""WebSockets that run a model on a client's frames, or send the events of a stream."""
