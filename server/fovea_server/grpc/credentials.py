"""TLS for gRPC."""

from __future__ import annotations

import grpc

from fovea_server.settings import Settings
from fovea_server.tls import check_grpc_files


def server_credentials(settings: Settings) -> grpc.ServerCredentials | None:
    """Read the server's credentials for TLS; None where it serves without TLS.

    Raises:
        InvalidOption: a file is not named, cannot be read, or is not valid.
    """
    check_grpc_files(settings)
    key, certificate = settings.grpc_server_key, settings.grpc_server_cert
    mutual = settings.grpc_use_ssl_mutual
    if not (settings.grpc_use_ssl or mutual) or key is None or certificate is None:
        return None
    root = settings.grpc_root_cert
    trusted = None if root is None else root.read_bytes()
    pair = key.read_bytes(), certificate.read_bytes()
    return grpc.ssl_server_credentials([pair], trusted, require_client_auth=mutual)
