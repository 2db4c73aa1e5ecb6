"""All families of heads but YOLOv8's boxes, and suppression in the graph."""
