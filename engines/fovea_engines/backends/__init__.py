"""Compiles and executes engines, with one file or folder per runtime."""
