"""Migrates a Triton repository whose pre- and postprocessing are separate models."""
