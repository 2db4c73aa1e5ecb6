"""Models of Triton's repositories, which have no card."""
