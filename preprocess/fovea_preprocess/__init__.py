"""From bytes to a model's input, and the geometry that maps results back."""
