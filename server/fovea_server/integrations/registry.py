"""The compatible APIs of other software, which the operator can enable with `--api`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from fovea_engines.backends.installing import install_extra
from fovea_preprocess.errors import InvalidOption

if TYPE_CHECKING:
    from fovea_server.dataplane.service import Service
    from fovea_server.feature import Feature

_KNOWN = ("deepstack", "frigate-zmq", "label-studio", "roboflow")
# Maps names of client software to the API that the software uses.
_NAMES = dict.fromkeys(
    ("codeproject", "codeproject.ai", "frigate", "blueiris", "home-assistant"), "deepstack"
)


def parse_apis(values: Iterable[str]) -> dict[str, str | None]:
    """Parse the operator's options, each NAME or NAME=MODEL.

    Returns:
        Dict from the name of each API to the name of its model, or to None if the operator named
        none.

    Raises:
        InvalidOption: an API is unknown or listed twice, or does not accept a model.
    """
    apis: dict[str, str | None] = {}
    for given in values:
        api, named, model = given.partition("=")
        if api not in _KNOWN:
            api = _NAMES.get(api.lower(), api.lower())
        if api not in _KNOWN:
            raise InvalidOption(f"unknown API '{api}'; the APIs are {', '.join(_KNOWN)}")
        if api in apis:
            raise InvalidOption(f"--api {api} is given twice: remove one")
        if named and not model:
            raise InvalidOption(
                f"--api '{given}' has no model name after '=': write {api} or {api}=MODEL"
            )
        if model and api == "roboflow":
            raise InvalidOption(
                "--api roboflow accepts no model name, because each request contains its own: "
                "write --api roboflow"
            )
        apis[api] = model or None
    return apis


def open_integration(name: str, service: Service) -> Feature:
    """Create the feature for an API.

    Raises:
        InvalidOption: the packages for the API are not installed, or the API does not work with the
            settings.
        Unavailable: the server cannot listen on the API's address.
    """
    if name == "deepstack":
        from fovea_server.integrations.deepstack import DeepStack

        return DeepStack()
    if name == "label-studio":
        from fovea_server.integrations.label_studio.routes import LabelStudio

        return LabelStudio()
    if name == "roboflow":
        from fovea_server.integrations.roboflow.routes import Roboflow

        return Roboflow()
    try:
        from fovea_server.integrations.frigate.listener import FrigateListener
    except ModuleNotFoundError as error:
        raise InvalidOption(
            "--api frigate-zmq needs packages that are not installed (pip install "
            f"'fovea-serve[frigate]'): {install_extra('frigate')}"
        ) from error
    return FrigateListener(service)
