"""Edits ONNX graphs for the command `fovea edit`, and checks that the results stay the same."""
