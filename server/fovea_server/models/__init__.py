"""Loads models from the directories of the repository and serves their versions."""
