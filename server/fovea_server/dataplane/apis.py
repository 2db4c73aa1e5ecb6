"""The APIs of other software that the operator has switched on (`--api`)."""

from __future__ import annotations

from collections.abc import Iterable

from fovea_preprocess.errors import InvalidOption

_KNOWN = ("deepstack", "frigate-zmq", "label-studio", "roboflow")
# Whose clients speak it -> its name.
_NAMES = dict.fromkeys(
    ("codeproject", "codeproject.ai", "frigate", "blueiris", "home-assistant"), "deepstack"
)


def parse_apis(values: Iterable[str]) -> dict[str, str | None]:
    """Parse the operator's options, each NAME or NAME=MODEL; None where no model is named.

    Raises:
        InvalidOption: an API is unknown, there twice, or takes no model.
    """
    apis: dict[str, str | None] = {}
    for given in values:
        api, named, model = given.partition("=")
        if api not in _KNOWN:
            api = _NAMES.get(api.lower(), api.lower())
        if api not in _KNOWN:
            raise InvalidOption(f"there is no API '{api}' to serve; there are {', '.join(_KNOWN)}")
        if api in apis:
            raise InvalidOption(f"--api {api} is there twice: leave one out")
        if named and not model:
            raise InvalidOption(f"--api '{given}' names no model; say {api} or {api}=MODEL")
        if model and api == "roboflow":
            raise InvalidOption("each request of roboflow names its model: say --api roboflow")
        apis[api] = model or None
    return apis
