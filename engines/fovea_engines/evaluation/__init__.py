"""Accuracy on labelled images: labels in their formats, and what is found on them."""
