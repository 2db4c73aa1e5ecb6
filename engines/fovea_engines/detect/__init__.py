"""Arrays to detections: heads, options, class names, NMS, drawing."""
