"""How accurate a detector is on labelled pictures, by COCO's rules."""
