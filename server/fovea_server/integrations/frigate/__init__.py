"""Frigate's remote detector over ZeroMQ: Frigate sends frames and receives boxes."""
