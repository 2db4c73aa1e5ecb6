"""Brings model versions into use: promotion, canaries, shadows."""
