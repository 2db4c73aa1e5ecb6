"""Two networks compared layer by layer."""
