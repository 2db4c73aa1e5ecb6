"""Types and validators of settings, and a check for environment variables that Kubernetes sets."""

from __future__ import annotations

import re
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, InstanceOf
from pydantic_settings import NoDecode

from fovea_server.stores.address import Address, parse_address

# Environment variables that Kubernetes adds to every pod if there is a Service called fovea or
# fovea-*.
_OF_KUBERNETES = re.compile(
    r"FOVEA_(\w+_)?(SERVICE_(HOST|PORT(_\w+)?)|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)"
)
_HOST = re.compile(r"\*|[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
ROOT_PATH = re.compile(r"(?:/[A-Za-z0-9_.~-]+){1,20}/?")
"""Path prefix under which a proxy serves this server."""
_ORIGIN = re.compile(r"\*|(?!http:.*:80$|https:.*:443$)[a-z][a-z0-9+.-]*://[a-z0-9.:\[\]_-]+")


def _several(value: object) -> object:
    """Wrap a single value, for example from the environment, in a tuple."""
    return (value,) if isinstance(value, str | Path | Address) else value


Texts = Annotated[tuple[str, ...], BeforeValidator(_several), NoDecode]


def _place(value: object) -> object:
    """Parse the URL of a remote store. Return a local path unchanged."""
    return (parse_address(value) or value) if isinstance(value, str) else value


Place = Annotated[Path | InstanceOf[Address], BeforeValidator(_place)]
Places = Annotated[tuple[Place, ...], BeforeValidator(_several), NoDecode]


def _check_origins(origins: tuple[str, ...]) -> tuple[str, ...]:
    """Reject origins that browsers do not send: with capitals, a path, or the default port."""
    for origin in origins:
        if not _ORIGIN.fullmatch(origin):
            like = "http://localhost:5173 or https://example.com, or give * for every page"
            raise ValueError(f"'{origin}' is not a web origin: write it as {like}")
    return origins


Origins = Annotated[Texts, AfterValidator(_check_origins)]


def _check_names(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return host names in lower case. Reject schemes, ports and partial names."""
    for name in names:
        if not _HOST.fullmatch(name):
            raise ValueError(
                f"'{name}' is not a host name: write it like vision.example.com, without scheme "
                "and port, or * for all"
            )
    return tuple(name.lower() for name in names)


HostNames = Annotated[Texts, AfterValidator(_check_names)]


def _check_hosts(hosts: tuple[str, ...]) -> tuple[str, ...]:
    """Return host names, IP addresses and networks in lower case. Reject other values."""
    for host in hosts:
        try:
            ip_network(host, strict=False)
        except ValueError:
            if host == "*" or not _HOST.fullmatch(host):
                raise ValueError(
                    f"'{host}' is not a host name, an address or a network: write it like "
                    "camera.lan, 127.0.0.1 or 192.168.1.0/24, without scheme and port"
                ) from None
    return tuple(host.lower() for host in hosts)


Hosts = Annotated[Texts, AfterValidator(_check_hosts)]


def _check_path(path: str) -> str:
    if path and not ROOT_PATH.fullmatch(path):
        raise ValueError(f"'{path}' is not a URL path: write it like /vision")
    return path


RootPath = Annotated[str, AfterValidator(_check_path)]


def links_a_service(name: str, value: str) -> bool:
    """Return whether Kubernetes has set this variable for a Service called fovea or fovea-*."""
    linked = name.upper().endswith("_PORT") and "://" in value
    return linked or _OF_KUBERNETES.fullmatch(name) is not None
