"""WebSockets: frames of a model in, and events of a stream out."""
