"""HTTP APIs of other software, for its clients: each is off until the operator names it."""
