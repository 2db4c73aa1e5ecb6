"""Brings new model versions into use: promotions, canaries, and shadow tests."""
