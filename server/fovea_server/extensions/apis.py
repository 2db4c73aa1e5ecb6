"""The HTTP APIs of other software that the operator has switched on."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from fovea_preprocess.errors import InvalidOption


class Api(StrEnum):
    """An HTTP API that existing clients call, by the name of the software that defined it."""

    DEEPSTACK = "deepstack"
    ROBOFLOW = "roboflow"
    LABEL_STUDIO = "label-studio"


def parse_apis(values: Iterable[str]) -> dict[Api, str | None]:
    """Parse the operator's options, each NAME or NAME=MODEL; None where no model is named.

    Raises:
        InvalidOption: an API is unknown, or there twice, or its requests name the model.
    """
    apis: dict[Api, str | None] = {}
    for given in values:
        name, named, model = given.partition("=")
        if name not in list(Api):
            raise InvalidOption(f"there is no API '{name}' to serve; there are {', '.join(Api)}")
        api = Api(name)
        if api in apis:
            raise InvalidOption(f"--api {api} is there twice: leave one out")
        if named and not model:
            raise InvalidOption(f"--api '{given}' names no model; say {api} or {api}=MODEL")
        if named and api is Api.ROBOFLOW:
            raise InvalidOption("each request of roboflow names its model: say --api roboflow")
        apis[api] = model or None
    return apis
