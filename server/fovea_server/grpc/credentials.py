"""TLS for gRPC."""

from __future__ import annotations

from pathlib import Path

import grpc

from fovea_preprocess.errors import InvalidOption
from fovea_server.settings import Settings


def server_credentials(settings: Settings) -> grpc.ServerCredentials | None:
    """What the server shows clients, and asks of them; None where it serves without TLS.

    Raises:
        InvalidOption: a file is not named, or cannot be read.
    """
    mutual = settings.grpc_use_ssl_mutual
    if not (settings.grpc_use_ssl or mutual):
        return None
    key = _read("--grpc-server-key", settings.grpc_server_key)
    certificate = _read("--grpc-server-cert", settings.grpc_server_cert)
    root = None
    if mutual or settings.grpc_root_cert is not None:
        root = _read("--grpc-root-cert", settings.grpc_root_cert)
    return grpc.ssl_server_credentials([(key, certificate)], root, require_client_auth=mutual)


def _read(flag: str, path: Path | None) -> bytes:
    if path is None:
        raise InvalidOption(f"gRPC over TLS needs {flag}: the path of a PEM file")
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidOption(f"{flag} {path} cannot be read: {error.strerror}") from error
