"""The operations of the server that transports call."""
