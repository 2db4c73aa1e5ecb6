"""The formats of results, one module per format."""
