"""Agreement of an engine with the model that it was built from; needs no labels."""
