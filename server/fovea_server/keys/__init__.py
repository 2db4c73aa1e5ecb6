"""Keys: who may use the server, and for what."""
