"""Label Studio's ML backend: predictions become regions of Label Studio."""
