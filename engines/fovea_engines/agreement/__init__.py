"""How well an engine agrees with the model it was built from, without any labels."""
