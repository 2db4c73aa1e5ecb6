"""The setting that the environment may have: the key that a server asks for."""

import os
from collections.abc import Mapping


def with_key(headers: Mapping[str, str], api_key: str | None = None) -> dict[str, str]:
    """Add a key to headers: `api_key`, or where that is None, FOVEA_API_KEY if it is set.

    An `api_key` of "" adds none, and nor do headers that authorize a request already.
    """
    key = os.environ.get("FOVEA_API_KEY") if api_key is None else api_key
    if not key or "authorization" in map(str.lower, headers):
        return dict(headers)
    return {**headers, "authorization": f"Bearer {key}"}
