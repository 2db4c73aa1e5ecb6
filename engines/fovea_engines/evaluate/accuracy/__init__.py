"""Accuracy of a detector on labelled images, by the rules of COCO."""
