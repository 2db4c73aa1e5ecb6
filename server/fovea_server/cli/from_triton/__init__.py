"""Reads a repository of Triton whose pre- and postprocessing are steps of their own."""
