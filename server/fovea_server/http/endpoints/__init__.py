"""What each address of the protocol does: a request in, an answer out."""
