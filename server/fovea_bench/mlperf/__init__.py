"""Runs of MLPerf Inference's load generator, LoadGen, against a model."""
