"""The commands of `fovea` that need the server package."""
