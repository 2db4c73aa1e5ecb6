"""`fovea health`: checks whether a server is live or ready, by default on this machine.

The module uses http.client, because httpx takes 0.12 s longer to import, and the command runs every
few seconds. It imports gRPC only if the server has no HTTP.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import typer

from fovea_preprocess.errors import InvalidOption, Unavailable
from fovea_server.auth.restrictions import Restrictions
from fovea_server.cli.command import program_of
from fovea_server.cli.flags import SwitchCommand, with_flags
from fovea_server.cli.triton_flags import translate_flags
from fovea_server.settings import Listening, flag, silence_grpc

if TYPE_CHECKING:
    import grpc
    from typer._click import Context

_SETTINGS = (
    *("allow_http", "http_address", "http_port", "http_restricted_api"),
    *("http_server_cert", "http_server_key"),
    *("allow_grpc", "grpc_address", "grpc_port", "grpc_restricted_protocol"),
    *("grpc_use_ssl", "grpc_use_ssl_mutual", "grpc_server_cert", "grpc_server_key"),
)
# The only setting of the server that also has an effect together with --url.
_SECRET = "http_restricted_api"
_LOOPBACK = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}
_PATHS = {"live": "/v2/health/live", "ready": "/v2/health/ready"}
_METHODS = {
    "live": "/inference.GRPCInferenceService/ServerLive",
    "ready": "/grpc.health.v1.Health/Check",
}
# Expected response of both gRPC methods. Its single field, number 1, is `true` or `SERVING`, which
# both have the value 1.
_HEALTHY = bytes([1 << 3, 1])


@dataclass(frozen=True, slots=True)
class Health:
    """The result of a health check.

    `check` is "live" or "ready". `reason` is the reason why the server is not healthy, otherwise
    None.
    """

    check: str
    url: str
    healthy: bool
    reason: str | None


class HealthCommand(SwitchCommand):
    """Exits with 1 for a wrong command line, because Docker reserves exit code 2 of a HEALTHCHECK.

    The other commands exit with 2.
    """

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        """Parse the arguments; change the exit code of an error to 1."""
        try:
            return super().parse_args(ctx, args)
        except typer.TyperException as error:
            error.exit_code = 1
            raise


def _drop_url_if_described(context: typer.Context, url: str | None) -> str | None:
    """Ignore the variable FOVEA_URL if typed flags describe the server."""
    source = context.get_parameter_source("url")
    described = (name for name in _SETTINGS if name != _SECRET and context.params.get(name))
    return None if source is not None and source.name != "COMMANDLINE" and any(described) else url


@partial(with_flags, settings=_SETTINGS, hidden=(), listed=False)
def health(
    url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            envvar="FOVEA_URL",
            callback=_drop_url_if_described,
            help="URL of the server, e.g. http://10.0.0.5:8000.",
            show_default="the server on this machine",
        ),
    ] = None,
    live: Annotated[
        bool,
        typer.Option(
            "--live",
            help=(
                "Check only that the server process responds. Without this option, the server must "
                "also be ready to serve its models."
            ),
        ),
    ] = False,
    timeout: Annotated[
        float,
        typer.Option(
            min=0.1,
            max=3600,
            metavar="SECONDS",
            help="Time in seconds to wait for a response; the check fails without one.",
        ),
    ] = 3.0,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print the result as one JSON document instead of text."),
    ] = False,
    **given: object,
) -> None:
    """Check whether a server is ready.

    If the server is not ready, the command prints the reason, and exits with status 1. Without
    --url, it checks the server on this machine, at 127.0.0.1:8000. If that server has another
    address, TLS, or a secret, give --url, or repeat these flags of `fovea serve`: --host and
    --port, --http-server-cert, --http-restricted-api. Their variables, e.g. FOVEA_HTTP_PORT, work
    too. With --allow-http=false the check uses gRPC, and accepts --grpc-port, --grpc-use-ssl and
    the other gRPC flags of these kinds.

    Example: fovea health --live

    Example: fovea health --url http://10.0.0.5:8000
    """
    check = "live" if live else "ready"
    try:
        typed = translate_flags(given)
        settings = Listening.from_flags(typed)
        if url is None:
            found = _health(settings, check, timeout)
        elif other := next((name for name in typed if name != _SECRET), None):
            raise InvalidOption(f"give --url or {flag(other)}, not both")
        else:
            found = _health_at(url, settings, check, timeout)
    except InvalidOption as error:
        raise Unavailable(str(error)) from error
    if as_json:
        typer.echo(json.dumps(asdict(found), indent=2))
    elif found.healthy:
        typer.echo(f"The server at {found.url} is {found.check}.")
    else:
        typer.echo(f"The server at {found.url} is not {found.check}: {found.reason}", err=True)
    if not found.healthy:
        raise typer.Exit(1)


program = program_of("health", health, HealthCommand)


def _health_at(url: str, settings: Listening, check: str, timeout_s: float) -> Health:
    """Check the server at a URL; raise InvalidOption if the URL is invalid."""
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or parts.scheme not in ("http", "https") or parts.path.strip("/"):
        raise InvalidOption(f"--url is '{url}', but must be a URL such as http://10.0.0.5:8000")
    tls = ssl.create_default_context() if parts.scheme == "https" else None
    port = port or (80 if tls is None else 443)
    ask = partial(_over_http, settings, host, port, tls)
    return _check_health(ask, check, f"{parts.scheme}://{_join_host_port(host, port)}", timeout_s)


def _health(settings: Listening, check: str, timeout_s: float) -> Health:
    """Check the server that runs with these settings.

    Raises:
        InvalidOption: the settings give no address to check.
    """
    if not (settings.allow_http or settings.allow_grpc):
        raise InvalidOption(
            "HTTP and gRPC are both disabled, so health cannot be checked: enable one of them"
        )
    name = "http" if settings.allow_http else "grpc"
    host, port = getattr(settings, f"{name}_address"), getattr(settings, f"{name}_port")
    if port == 0:
        raise InvalidOption(f"with port 0 the port changes at every start: give --{name}-port")
    host = _LOOPBACK.get(host, host)
    tls = "s" if settings.http_server_cert else ""
    url = f"{f'http{tls}' if name == 'http' else 'grpc'}://{_join_host_port(host, port)}"
    ask = (
        partial(_over_http, settings, host, port, _make_unverified_context() if tls else None)
        if name == "http"
        else partial(_over_grpc, settings, host, port)
    )
    return _check_health(ask, check, url, timeout_s)


def _check_health(
    ask: Callable[[str, float], str | None], check: str, url: str, timeout_s: float
) -> Health:
    try:
        reason = ask(check, timeout_s)
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = f"it does not respond: {_failure(error)}"
    return Health(check, url, reason is None, reason)


def _join_host_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _over_http(
    settings: Listening,
    host: str,
    port: int,
    tls: ssl.SSLContext | None,
    check: str,
    timeout_s: float,
) -> str | None:
    """Check over HTTP.

    Return the reason why the server is not healthy, or None if it is healthy.
    """
    secret = Restrictions.parse(settings.http_restricted_api).secret("health")
    connection = (
        http.client.HTTPConnection(host, port, timeout=timeout_s)
        if tls is None
        else http.client.HTTPSConnection(host, port, timeout=timeout_s, context=tls)
    )
    with closing(connection):
        connection.request("GET", _PATHS[check], headers=dict([secret] if secret else []))
        answer = connection.getresponse()
        status, body = answer.status, answer.read()
    if status == http.client.OK:
        return None
    reason = None
    with suppress(ValueError):
        document = json.loads(body)
        if isinstance(document, dict):
            reason = document.get("reason") or document.get("error")
    return reason or f"{_PATHS[check]} returned status {status}"


def _make_unverified_context() -> ssl.SSLContext:
    """Make a TLS context that accepts any certificate.

    The certificate is for the public name of the server, not for the loopback address that this
    check uses. Also, the check must not fail if the certificate file was renewed while the server
    runs.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _failure(error: Exception) -> str:
    if isinstance(error, http.client.BadStatusLine):
        return (
            f"the response is not HTTP ({str(error)[:16]!r}); if the server uses TLS, give --url "
            "https://..., or the --http-server-cert and --http-server-key of `fovea serve`"
        )
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _over_grpc(
    settings: Listening, host: str, port: int, check: str, timeout_s: float
) -> str | None:
    """Check over gRPC; return the reason why the server is not healthy, or None if it is healthy.

    The timeout covers all connections of the check together.
    """
    silence_grpc()
    import grpc

    deadline = time.monotonic() + timeout_s
    secret = Restrictions.parse(settings.grpc_restricted_protocol).secret("health")
    metadata = [] if secret is None else [(f"triton-grpc-protocol-{secret[0]}".lower(), secret[1])]
    target = _join_host_port(host, port)
    # A proxy from environment variables is for other machines, not for this machine.
    options: list[tuple[str, int | str]] = [("grpc.enable_http_proxy", 0)]
    try:
        if settings.grpc_use_ssl or settings.grpc_use_ssl_mutual:
            credentials, name = _make_credentials(settings, (host, port), deadline)
            options.append(("grpc.ssl_target_name_override", name))
            channel = grpc.secure_channel(target, credentials, options)
        else:
            channel = grpc.insecure_channel(target, options)
        with channel:
            answer = channel.unary_unary(_METHODS[check])(b"", _remaining_s(deadline), metadata)
    except grpc.RpcError as error:
        return f"it does not respond: {error.details()}"
    return None if answer == _HEALTHY else "see the server's log"


def _make_credentials(
    settings: Listening, address: tuple[str, int], deadline: float
) -> tuple[grpc.ChannelCredentials, str]:
    """Make credentials that trust the server's present certificate, and return a name in it.

    gRPC always verifies certificates, so the certificate is first read without verification. See
    `_make_unverified_context` for the reason why any certificate is accepted.
    """
    import grpc

    context = _make_unverified_context()
    context.set_alpn_protocols(["h2"])
    files: list[bytes] = []
    key, certificate = settings.grpc_server_key, settings.grpc_server_cert
    if settings.grpc_use_ssl_mutual and key is not None and certificate is not None:
        # The server requires a client certificate. The server's own certificate is the only one
        # available here.
        context.load_cert_chain(certificate, key, password="")
        files = [key.read_bytes(), certificate.read_bytes()]
    with _connect(context, address, deadline) as connection:
        shown = ssl.DER_cert_to_PEM_cert(connection.getpeercert(binary_form=True) or b"")
    # `ssl` returns the names in a certificate only if it has verified the certificate.
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(cadata=shown)
    with _connect(context, address, deadline) as connection:
        fields: dict[str, Any] = connection.getpeercert() or {}
    subject = [p for part in fields.get("subject", ()) for p in part if p[0] == "commonName"]
    names = [name for _, name in (*fields.get("subjectAltName", ()), *subject)]
    return grpc.ssl_channel_credentials(shown.encode(), *files), names[0] if names else address[0]


def _connect(context: ssl.SSLContext, address: tuple[str, int], deadline: float) -> ssl.SSLSocket:
    connection = socket.create_connection(address, _remaining_s(deadline))
    connection.settimeout(_remaining_s(deadline))
    return context.wrap_socket(connection)


def _remaining_s(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    return left
