"""Reads the API key from the environment."""

import os
from collections.abc import Mapping


def with_key(headers: Mapping[str, str], api_key: str | None = None) -> dict[str, str]:
    """Return headers with an API key added: `api_key`, or FOVEA_API_KEY if `api_key` is None.

    No key is added if `api_key` is "", or if the headers already contain a key.

    Example:
        httpx.get(url, headers=with_key({}))
    """
    key = (os.environ.get("FOVEA_API_KEY", "") if api_key is None else api_key).strip()
    if not key or {"authorization", "x-api-key"} & set(map(str.lower, headers)):
        return dict(headers)
    return {**headers, "authorization": f"Bearer {key}"}
