"""Connections to other hosts: images by address, and a collector of spans."""
