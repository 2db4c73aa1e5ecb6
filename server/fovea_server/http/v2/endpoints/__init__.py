"""The endpoints of the v2 protocol: a request in, an answer out."""
