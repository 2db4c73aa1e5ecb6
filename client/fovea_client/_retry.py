"""When a failed request is worth sending again."""

from __future__ import annotations

import random

from fovea_client.errors import ConnectionFailed, FoveaClientError, ServerError

FIRST_WAIT_S = 0.1


def wait_s(error: FoveaClientError, attempt: int, longest_s: float) -> float | None:
    """Seconds to wait before the next attempt; None when there should be none.

    What the server asks for in Retry-After is honoured to the full; a connection that failed is
    tried again after 0.1, 0.2, 0.4 ... s. Up to a quarter more, at random, keeps clients that
    were turned away together from coming back together.

    Args:
        error: what the last attempt ended with.
        attempt: how many attempts came before that one.
        longest_s: a wait longer than this is not worth it.
    """
    match error:
        case ServerError(retry_after_s=float(asked)):
            wait = asked
        case ConnectionFailed():
            wait = FIRST_WAIT_S * 2.0**attempt
        case _:
            return None
    return None if wait > longest_s else wait * random.uniform(1.0, 1.25)
