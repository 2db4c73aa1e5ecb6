"""The commands of the program `fovea` that need the server package."""
