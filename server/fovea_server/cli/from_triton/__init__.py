"""Migrates a Triton repository that has separate models for pre- and postprocessing."""
