"""Models, from folders of a repository to versions that answer."""
