"""Everything that a transport may ask of the server."""
