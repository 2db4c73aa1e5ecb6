"""What the server tells the operator."""

from __future__ import annotations

import logging


def set_up_logging(level: str) -> None:
    """One line an event, to stderr."""
    logging.basicConfig(
        level=level.upper(), format="%(asctime)s %(levelname)-7s %(name)s: %(message)s"
    )
    # It tells of every request it sends.
    logging.getLogger("httpx").setLevel(logging.WARNING)
