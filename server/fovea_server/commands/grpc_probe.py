"""The question of `fovea health` where the server has no HTTP: gRPC, on this machine."""

from __future__ import annotations

import socket
import ssl
import time
from typing import Any

from fovea_server.commands.probe import joined, reason_of
from fovea_server.extensions.restrictions import Restrictions
from fovea_server.settings import Listening, silence_grpc

silence_grpc()

import grpc  # noqa: E402

_METHODS = {
    "live": "/inference.GRPCInferenceService/ServerLive",
    "ready": "/grpc.health.v1.Health/Check",
}
# Both answer one field, the first: true, and SERVING.
_YES = bytes([1 << 3, 1])


def ask(settings: Listening, host: str, port: int, check: str, timeout_s: float) -> str | None:
    """Ask the server for its health.

    Args:
        settings: of the server.
        host: that it listens on.
        port: that it listens on.
        check: "live" or "ready".
        timeout_s: time to wait, over all connections.

    Returns:
        Why it is not live or ready; None where it is.
    """
    deadline = time.monotonic() + timeout_s
    secret = Restrictions.parse(settings.grpc_restricted_protocol).secret("health")
    metadata = [] if secret is None else [(f"triton-grpc-protocol-{secret[0]}".lower(), secret[1])]
    target = joined(host, port)
    # A proxy of the environment is not for this machine.
    options: list[tuple[str, Any]] = [("grpc.enable_http_proxy", 0)]
    try:
        if settings.grpc_use_ssl or settings.grpc_use_ssl_mutual:
            credentials, name = _trusting(settings, (host, port), deadline)
            options.append(("grpc.ssl_target_name_override", name))
            channel = grpc.secure_channel(target, credentials, options)
        else:
            channel = grpc.insecure_channel(target, options)
        with channel:
            answer = channel.unary_unary(_METHODS[check])(b"", _left(deadline), metadata)
    except (OSError, ValueError) as error:
        return f"it does not answer: {reason_of(error)}"
    except grpc.RpcError as error:
        return f"it does not answer: {error.details()}"
    return None if answer == _YES else "its log says why"


def _trusting(
    settings: Listening, address: tuple[str, int], deadline: float
) -> tuple[grpc.ChannelCredentials, str]:
    """Credentials that trust the certificate which the server shows, and a name that is in it.

    gRPC always verifies, and the certificate names the host that clients know, not the loopback
    address that is asked here.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    files: list[bytes] = []
    key, certificate = settings.grpc_server_key, settings.grpc_server_cert
    if settings.grpc_use_ssl_mutual and key is not None and certificate is not None:
        # The server asks for a certificate, and there is no other here than its own.
        context.load_cert_chain(certificate, key, password="")
        files = [key.read_bytes(), certificate.read_bytes()]
    with _connected(context, address, deadline) as connection:
        shown = ssl.DER_cert_to_PEM_cert(connection.getpeercert(binary_form=True) or b"")
    # `ssl` tells the names in a certificate only after verifying it.
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(cadata=shown)
    with _connected(context, address, deadline) as connection:
        said: dict[str, Any] = connection.getpeercert() or {}
    subject = [pair for part in said.get("subject", ()) for pair in part if pair[0] == "commonName"]
    names = [name for _, name in (*said.get("subjectAltName", ()), *subject)]
    return grpc.ssl_channel_credentials(shown.encode(), *files), names[0] if names else address[0]


def _connected(context: ssl.SSLContext, address: tuple[str, int], deadline: float) -> ssl.SSLSocket:
    connection = socket.create_connection(address, _left(deadline))
    connection.settimeout(_left(deadline))
    return context.wrap_socket(connection)


def _left(deadline: float) -> float:
    """Seconds until a deadline.

    Raises:
        TimeoutError: it is over.
    """
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    return left
