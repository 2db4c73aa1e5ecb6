"""The transport-independent operations of the server."""
