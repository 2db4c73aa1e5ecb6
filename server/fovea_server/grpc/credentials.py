"""TLS for gRPC."""

from __future__ import annotations

from pathlib import Path

import grpc

from fovea_preprocess.errors import InvalidOption
from fovea_server.settings import Settings
from fovea_server.tls import check_pair


def server_credentials(settings: Settings) -> grpc.ServerCredentials | None:
    """What the server shows clients, and asks of them; None where it serves without TLS.

    Raises:
        InvalidOption: a file is not named, cannot be read, or is not what it should be.
    """
    mutual = settings.grpc_use_ssl_mutual
    if not (settings.grpc_use_ssl or mutual):
        return None
    key = _named("--grpc-server-key", settings.grpc_server_key)
    certificate = _named("--grpc-server-cert", settings.grpc_server_cert)
    root = settings.grpc_root_cert
    if mutual:
        root = _named("--grpc-root-cert", root)
    # gRPC only says that it cannot listen; this says why.
    check_pair("TLS for gRPC", certificate, key)
    try:
        trusted = None if root is None else root.read_bytes()
    except OSError as error:
        raise InvalidOption(
            f"TLS for gRPC cannot be set up from {root}: {error.strerror or error}"
        ) from error
    pair = key.read_bytes(), certificate.read_bytes()
    return grpc.ssl_server_credentials([pair], trusted, require_client_auth=mutual)


def _named(flag: str, path: Path | None) -> Path:
    if path is None:
        raise InvalidOption(f"gRPC over TLS needs {flag}: the path of a PEM file")
    return path
