"""Runs the text encoders of models that compare texts with images, such as CLIP."""
