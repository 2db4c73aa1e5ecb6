"""Models from a folder of the repository to versions that answer."""
