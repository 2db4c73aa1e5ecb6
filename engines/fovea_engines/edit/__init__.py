"""Edits of ONNX graphs that a user asks for, and the check that each leaves the rest as it was."""
