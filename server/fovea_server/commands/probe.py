"""One question to a server on this machine: is it alive, is it ready?

http.client asks it: httpx takes 0.12 s longer to import, and this runs every few seconds.
"""

from __future__ import annotations

import http.client
import json
import ssl
from dataclasses import dataclass

from fovea_preprocess.errors import InvalidOption
from fovea_server.extensions.restrictions import Restrictions
from fovea_server.settings import Listening

_LOOPBACK = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}
_PATHS = {"live": "/v2/health/live", "ready": "/v2/health/ready"}


@dataclass(frozen=True, slots=True)
class Health:
    """The answer.

    Attributes:
        check: "live" or "ready".
        url: that was asked.
        healthy: whether the server is live, or ready.
        reason: why it is not; None where it is.
    """

    check: str
    url: str
    healthy: bool
    reason: str | None


def probe(settings: Listening, check: str, timeout_s: float) -> Health:
    """Ask the server that these settings start, over HTTP or else over gRPC.

    Args:
        settings: of the server.
        check: "live" or "ready".
        timeout_s: time to wait for the answer.

    Raises:
        InvalidOption: the settings do not say where the server listens.
    """
    if settings.allow_http:
        return _over_http(settings, check, timeout_s)
    if settings.allow_grpc:
        # Imported here, as hardly anybody serves without HTTP.
        from fovea_server.commands.grpc_probe import ask

        host, port = _address(settings, "grpc")
        url = f"grpc://{joined(host, port)}"
        reason = ask(settings, host, port, check, timeout_s)
        return Health(check, url, reason is None, reason)
    raise InvalidOption("HTTP and gRPC are both off, so there is nothing to ask")


def _address(settings: Listening, name: str) -> tuple[str, int]:
    host, port = getattr(settings, f"{name}_address"), getattr(settings, f"{name}_port")
    if port == 0:
        raise InvalidOption(f"port 0 means another port at every start: give --{name}-port")
    return _LOOPBACK.get(host, host), port


def joined(host: str, port: int) -> str:
    """An address as URLs have it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _over_http(settings: Listening, check: str, timeout_s: float) -> Health:
    host, port = _address(settings, "http")
    tls = settings.http_server_cert is not None
    url = f"http{'s' if tls else ''}://{joined(host, port)}"
    secret = Restrictions.parse(settings.http_restricted_api).secret("health")
    connection = (
        http.client.HTTPSConnection(host, port, timeout=timeout_s, context=_unverified())
        if tls
        else http.client.HTTPConnection(host, port, timeout=timeout_s)
    )
    try:
        connection.request("GET", _PATHS[check], headers=dict([secret] if secret else []))
        answer = connection.getresponse()
        status, body = answer.status, answer.read()
    except (OSError, ValueError, http.client.HTTPException) as error:
        return Health(check, url, False, f"it does not answer: {reason_of(error)}")
    finally:
        connection.close()
    healthy = status == http.client.OK
    reason = None if healthy else _said(body) or f"{_PATHS[check]} answers {status}"
    return Health(check, url, healthy, reason)


def _unverified() -> ssl.SSLContext:
    """TLS that takes any certificate.

    The certificate names the host that clients know, and not the loopback address that is asked
    here; and a probe must not fail because the file was renewed while the server runs.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def reason_of(error: Exception) -> str:
    """The reason of a failed connection, in its own words."""
    if isinstance(error, http.client.BadStatusLine):
        return (
            f"{error}; if it speaks TLS, give --http-server-cert and --http-server-key, as to "
            "`fovea serve`"
        )
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _said(body: bytes) -> str | None:
    """The reason in the body of an answer."""
    try:
        document = json.loads(body)
    except ValueError:
        return None
    if not isinstance(document, dict):
        return None
    return document.get("reason") or document.get("error")
