"""Mirrors model repositories from object stores and web servers to local directories."""
