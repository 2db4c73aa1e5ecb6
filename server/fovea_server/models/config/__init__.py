"""Reads config.pbtxt, completes it from the engine, and checks it."""
