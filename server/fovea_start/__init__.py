"""Starts projects: with a demo model, or from a repository of Triton."""
