"""Edits ONNX graphs for the user, and checks that an edit changes nothing else."""
