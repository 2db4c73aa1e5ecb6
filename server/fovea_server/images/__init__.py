"""Images on their way through a model: decode, letterbox, infer, boxes."""
