"""Mirrors model repositories in object stores and on web servers to local directories."""
