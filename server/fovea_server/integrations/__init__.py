"""Compatible APIs of other software, so that its clients can use this server."""
