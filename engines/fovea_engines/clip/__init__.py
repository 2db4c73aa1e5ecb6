"""Models that read texts as well as images, such as CLIP."""
