"""Detectors over many files: what is read, what is found, and the files it is written to."""
