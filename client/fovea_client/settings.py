"""The setting that the environment may have: the key that a server asks for."""

import os
from collections.abc import Mapping


def with_key(headers: Mapping[str, str], api_key: str | None = None) -> dict[str, str]:
    """Add a key to headers: `api_key`, or where that is None, FOVEA_API_KEY if it is set.

    Nothing is added for an `api_key` of "", and where the headers have a key already.
    """
    key = (os.environ.get("FOVEA_API_KEY", "") if api_key is None else api_key).strip()
    if not key or {"authorization", "x-api-key"} & set(map(str.lower, headers)):
        return dict(headers)
    return {**headers, "authorization": f"Bearer {key}"}
