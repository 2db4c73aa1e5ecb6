"""WebSockets: run a model on a client's frames, and send the events of a stream."""
