"""The import path that configurations of Ray written by 0.1 name."""
