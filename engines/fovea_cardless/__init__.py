"""Engines without a card, as in repositories of Triton."""
