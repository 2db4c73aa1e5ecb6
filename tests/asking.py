"""Gives httpx long time-outs in the tests, and one set of certificates for all clients."""

import os
import ssl
from functools import cache

import httpx
from httpx._transports import default

_PATIENCE_S = 60.0


def ask_patiently() -> None:
    """Let a machine that is busy take its time for an answer, where a test says nothing else.

    And share the certificates of all authorities: to read them takes each `httpx.get` thirty times
    the processor that an answer takes, though no test asks a host that they vouch for.
    """
    for phase in ("connect", "read", "write", "pool"):
        setattr(httpx._config.DEFAULT_TIMEOUT_CONFIG, phase, _PATIENCE_S)
    default.create_ssl_context = _context


def _context(
    verify: ssl.SSLContext | str | bool = True, cert: object = None, trust_env: bool = True
) -> ssl.SSLContext:
    if verify is True and cert is None and trust_env:
        return _shared(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))
    return httpx.create_ssl_context(verify, cert, trust_env)


@cache
def _shared(file: str | None, folder: str | None) -> ssl.SSLContext:
    """Make the context of an environment that names these."""
    return httpx.create_ssl_context()
