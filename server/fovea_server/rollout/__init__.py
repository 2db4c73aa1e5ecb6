"""Brings versions into use: promotion, canaries, shadows."""
