"""Decides if and when a failed request is sent again."""

from __future__ import annotations

import random

from fovea_client.errors import ConnectionFailed, FoveaClientError, ServerError

FIRST_WAIT_S = 0.1


def wait_s(error: FoveaClientError, attempt: int, longest_s: float) -> float | None:
    """Return the seconds to wait before the next attempt; None when there should be none.

    The server's Retry-After is always respected; after a failed connection the waits are 0.1, 0.2,
    0.4 ... s. Up to a quarter more, at random, keeps clients that were refused together from
    returning together.

    Args:
        error: result of the last attempt.
        attempt: number of attempts before that one.
        longest_s: longest wait; None is returned for a longer one.
    """
    match error:
        case ServerError(retry_after_s=float(asked)):
            wait = asked
        case ConnectionFailed():
            wait = FIRST_WAIT_S * 2.0**attempt
        case _:
            return None
    return None if wait > longest_s else wait * random.uniform(1.0, 1.25)
