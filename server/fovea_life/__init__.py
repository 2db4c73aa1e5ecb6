"""From production to the next version of a model: what it gets is kept, to learn from."""
