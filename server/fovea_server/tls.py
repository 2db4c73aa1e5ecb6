"""Checks certificates and private keys before the servers use them."""

from __future__ import annotations

import ssl
from pathlib import Path

from fovea_preprocess.errors import InvalidOption
from fovea_server.settings import Settings


def https_files(settings: Settings) -> tuple[Path, Path] | None:
    """Check the certificate and the private key for HTTPS, and return their paths.

    Returns:
        (certificate, private key), or None if HTTP is served without TLS.

    Raises:
        InvalidOption: only one of the two is set, or they cannot be used. The message contains the
            paths of the files.
    """
    certificate, key = settings.http_server_cert, settings.http_server_key
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        missing = "--http-server-cert" if certificate is None else "--http-server-key"
        raise InvalidOption(f"HTTPS also needs {missing}: the path of a PEM file")
    _check_pair("HTTPS", certificate, key)
    return certificate, key


def check_grpc_files(settings: Settings) -> None:
    """Check the files for gRPC over TLS, if the settings enable TLS.

    Raises:
        InvalidOption: a file is not set or cannot be used. The message contains the setting.
    """
    mutual = settings.grpc_use_ssl_mutual
    if not (settings.grpc_use_ssl or mutual):
        return
    key = _require_path("--grpc-server-key", settings.grpc_server_key)
    certificate = _require_path("--grpc-server-cert", settings.grpc_server_cert)
    if mutual:
        _require_path("--grpc-root-cert", settings.grpc_root_cert)
    # Check the files here, because gRPC itself would report only that it cannot listen.
    _check_pair("TLS for gRPC", certificate, key)
    if (root := settings.grpc_root_cert) is not None:
        try:
            root.read_bytes()
        except OSError as error:
            raise InvalidOption(
                f"TLS for gRPC cannot be set up from {root}: {error.strerror or error}"
            ) from error


def _require_path(flag: str, path: Path | None) -> Path:
    if path is None:
        raise InvalidOption(f"gRPC over TLS needs {flag}: the path of a PEM file")
    return path


def _check_pair(what: str, certificate: Path, key: Path) -> None:
    try:
        # Set an empty password. Without it, OpenSSL would prompt for the password of an encrypted
        # key on the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password="")
    except OSError as error:
        reason = error.strerror or error
        raise InvalidOption(
            f"{what} cannot be set up from {certificate}, {key} ({reason}): give a PEM certificate "
            "and its own private key, without a password"
        ) from error
