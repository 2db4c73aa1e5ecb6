"""From raw outputs to detections: one file a family."""
