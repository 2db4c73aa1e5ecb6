"""Verifies tokens of an OpenID Connect identity provider, as an alternative to API keys.

Sources: OpenID Connect Discovery 1.0; RFC 7519 (JWT), RFC 7517 (JWK), RFC 8725 (best practices for
JWT), RFC 9068 (JWT access tokens).
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import httpx
import jwt

from fovea_preprocess.errors import InvalidOption, KeysPending, Unauthenticated
from fovea_server.auth.key import SCOPES
from fovea_server.traffic.principal import Principal

log = logging.getLogger(__name__)

# Only algorithms with asymmetric keys. With a shared secret, everybody who can verify signatures
# could also sign tokens.
_ALGORITHMS = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA"),
)
# Tolerance in seconds for the difference between the clocks of two machines.
_SKEW_S = 30
# Time in seconds between two fetches of the provider's keys. Providers publish a new key before
# they sign with it.
_REFRESH_S = 300.0
# Time in seconds between two fetches while the provider cannot be reached. A token with an unknown
# key causes a new fetch only if the last fetch is longer ago than this time.
_AGAIN_S = 5.0
_TIMEOUT_S = 5.0
_MAX_TOKENS = 4096
_UNUSUAL = re.compile(r"[^!-~]")


class Provider:
    """Verifies tokens of one issuer for one audience, and refreshes the issuer's keys.

    Args:
        issuer: required value of the claim `iss`. It is a URL, under which OpenID Connect Discovery
            finds the keys.
        audience: text that the claim `aud` must contain.
        claim: name of the claim with the list of scopes. A dot selects a member of an object
            (`realm_access.roles`). Scopes may have the prefix "fovea:".

    Raises:
        InvalidOption: the URL of the issuer does not begin with https, and its host is not this
            machine.
    """

    def __init__(self, issuer: str, audience: str, claim: str) -> None:
        url = httpx.URL(issuer)
        if url.scheme != "https" and url.host not in ("127.0.0.1", "::1", "localhost"):
            raise InvalidOption(
                f"the URL of the issuer is {issuer}, but must begin with https://, because the "
                "server fetches the signing keys from it"
            )
        self._issuer, self._audience, self._claim = issuer, audience, claim
        self._keys: dict[str, jwt.PyJWK] = {}
        self._principals: dict[str, Principal] = {}
        self._fetched = 0.0
        self._wake, self._closed = threading.Event(), False
        self._fetch()
        threading.Thread(target=self._refresh, name="issuer", daemon=True).start()

    def issues(self, token: str) -> bool:
        """Return whether a text has the form of a JWT: three parts separated by dots."""
        return token.count(".") == 2

    def principal(self, token: str, digest: str) -> Principal:
        """Return the principal of a token. Valid tokens are cached by `digest`.

        Raises:
            Unauthenticated: the token is invalid.
            KeysPending: the signing key is unknown, and the server is fetching the keys again.
        """
        if (known := self._principals.get(digest)) is not None:
            return known
        try:
            key = self._key(jwt.get_unverified_header(token))
            claims = jwt.decode(
                token,
                key,
                algorithms=[key.algorithm_name],
                audience=self._audience,
                issuer=self._issuer,
                leeway=_SKEW_S,
                options={"require": ["exp", "iss", "aud"]},
            )
            found = self._principal(claims)
        # Values of claims may have any type, although the token is signed.
        except (jwt.PyJWTError, TypeError, ValueError, OverflowError) as error:
            raise Unauthenticated(f"invalid token: {error}") from None
        if len(self._principals) >= _MAX_TOKENS:
            self._principals.clear()
        self._principals[digest] = found
        return found

    def close(self) -> None:
        """Stop the thread that fetches the keys."""
        self._closed = True
        self._wake.set()

    def _key(self, header: Mapping[str, Any]) -> jwt.PyJWK:
        keys, name = self._keys, header.get("kid")
        key = keys.get(name) if isinstance(name, str) else None
        if key is None and name is None and len(keys) == 1:
            [key] = keys.values()
        if key is None:
            if not keys or time.monotonic() - self._fetched > _AGAIN_S:
                self._wake.set()
                raise KeysPending(
                    "the server is fetching the keys of the issuer: send the request again in 1 s"
                )
            raise jwt.InvalidKeyError("the issuer does not have the key that signed the token")
        return key

    def _principal(self, claims: Mapping[str, Any]) -> Principal:
        given = claims.get(self._claim)
        if given is None:
            given = claims
            for part in self._claim.split("."):
                given = given.get(part) if isinstance(given, dict) else None
        # In OAuth 2.0, scopes are one text with spaces. Most providers use a list instead.
        listed = given if isinstance(given, list) else []
        listed = given.split() if isinstance(given, str) else listed
        names = {each.removeprefix("fovea:") for each in listed if isinstance(each, str)}
        who = claims.get("sub") or claims.get("client_id") or claims.get("azp") or "-"
        return Principal(
            name=f"jwt:{_UNUSUAL.sub('_', str(who))[:64]}",
            label="jwt",
            scopes=frozenset(scope for scope in SCOPES if scope in names),
            expires=datetime.fromtimestamp(claims["exp"] + _SKEW_S, UTC),
        )

    def _refresh(self) -> None:
        while not self._closed:
            self._wake.wait(_REFRESH_S if self._keys else _AGAIN_S)
            self._wake.clear()
            # Limit the number of fetches, because each token of a client can wake this thread.
            if not self._closed and time.monotonic() - self._fetched > _AGAIN_S / 2:
                self._fetch()

    def _fetch(self) -> None:
        url = f"{self._issuer.rstrip('/')}/.well-known/openid-configuration"
        try:
            with httpx.Client(timeout=_TIMEOUT_S) as client:
                about = client.get(url).raise_for_status().json()
                if about["issuer"] != self._issuer:
                    raise ValueError(f"the document is from another issuer, {about['issuer']}")
                found = client.get(about["jwks_uri"]).raise_for_status().json()
            keys = {
                each.key_id or "": each
                for each in jwt.PyJWKSet.from_dict(found).keys
                if each.algorithm_name in _ALGORITHMS and each.public_key_use in (None, "sig")
            }
            if not keys:
                raise ValueError("the issuer has no signing keys")
        # Catch every exception, because the provider can return anything. If this thread ended, the
        # keys would never be refreshed.
        except Exception as error:  # noqa: BLE001
            log.error(
                "the signing keys of issuer %s cannot be fetched from %s: %s",
                self._issuer,
                url,
                error,
            )
        else:
            # Clear the cache, because a token that was signed with a removed key must be rejected.
            self._keys, self._principals = keys, {}
        finally:
            self._fetched = time.monotonic()
