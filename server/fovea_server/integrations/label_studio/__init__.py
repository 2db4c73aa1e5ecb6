"""Label Studio's ML backend: what models find becomes predictions, in its regions."""
