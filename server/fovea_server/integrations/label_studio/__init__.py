"""The API of Label Studio's ML backends: predictions become regions of Label Studio."""
