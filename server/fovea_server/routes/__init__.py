"""HTTP routes: thin converters around the data plane."""
