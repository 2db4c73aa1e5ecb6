"""INT8 and FP16: measured tensor ranges, blocks that stay float, and the converted graphs."""
