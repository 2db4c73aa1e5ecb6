"""The formats of result files, one module per format."""
