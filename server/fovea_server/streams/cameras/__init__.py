"""Camera streams: a model runs on the frames of a camera."""
