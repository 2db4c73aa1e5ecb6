"""Says which version of a model is current: promotions, canaries, and the way back."""
