"""Mirrors repositories that are in stores of objects into folders of this machine."""
