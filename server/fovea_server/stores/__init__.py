"""Mirrors repositories of stores and web servers into folders of this machine."""
