"""Turns arrays into detections: heads, options, class names, NMS, drawing."""
