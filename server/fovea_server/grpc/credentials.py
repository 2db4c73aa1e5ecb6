"""TLS for gRPC."""

from __future__ import annotations

import ssl
from pathlib import Path

import grpc

from fovea_preprocess.errors import InvalidOption
from fovea_server.settings import Settings


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
    try:
        # gRPC only says that it cannot listen; this says why.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
        pair = key.read_bytes(), certificate.read_bytes()
        trusted = root.read_bytes() if root is not None else None
    except OSError as error:
        files = ", ".join(str(path) for path in (key, certificate, root) if path is not None)
        raise InvalidOption(
            f"TLS for gRPC cannot be set up from {files}: {error.strerror or error}"
        ) from error
    return grpc.ssl_server_credentials([pair], trusted, require_client_auth=mutual)


def _named(flag: str, path: Path | None) -> Path:
    if path is None:
        raise InvalidOption(f"gRPC over TLS needs {flag}: the path of a PEM file")
    return path
