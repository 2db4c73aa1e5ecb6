"""The HTTP APIs of other software that the operator has switched on; packages add them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fovea_preprocess.entry_points import Group, entry_points, load
from fovea_preprocess.errors import InvalidOption

# Whose clients speak it -> its name.
_NAMES = dict.fromkeys(
    ("codeproject", "codeproject.ai", "frigate", "blueiris", "home-assistant"), "deepstack"
)


def parse_apis(values: Iterable[str]) -> dict[str, str | None]:
    """Parse the operator's options, each NAME or NAME=MODEL; None where no model is named.

    Raises:
        InvalidOption: an API is unknown, or there twice.
    """
    apis: dict[str, str | None] = {}
    for given in values:
        api, named, model = given.partition("=")
        known = entry_points(Group.ROUTERS)
        if api not in known:
            api = _NAMES.get(api.lower(), api.lower())
        if api not in known:
            raise InvalidOption(f"there is no API '{api}' to serve; there are {', '.join(known)}")
        if api in apis:
            raise InvalidOption(f"--api {api} is there twice: leave one out")
        if named and not model:
            raise InvalidOption(f"--api '{given}' names no model; say {api} or {api}=MODEL")
        apis[api] = model or None
    return apis


def routers_of(apis: Mapping[str, str | None]) -> list[object]:
    """Import the `APIRouter` of each API, which gets the model that the operator named.

    Raises:
        InvalidOption: an API takes no model.
        Unavailable: its package cannot be imported.
    """
    return [load(Group.ROUTERS, api)(model) for api, model in apis.items()]
