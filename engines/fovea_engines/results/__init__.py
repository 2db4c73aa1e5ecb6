"""Turns arrays into results of every task: heads, options, class names, NMS."""
