"""Frigate's remote detector over ZeroMQ: frames in, boxes out."""
