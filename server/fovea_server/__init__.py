"""Serves engines over HTTP: image in, boxes out."""
