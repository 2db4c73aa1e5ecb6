"""Two models, or two precisions of one, compared layer by layer."""
