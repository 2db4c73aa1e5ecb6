"""The results of each task, as responses have them."""
