"""Tokens of a company's own provider of identities (OpenID Connect), in the place of keys.

Sources: OpenID Connect Discovery 1.0; RFC 7519 (JWT), 7517 (JWK), 8725 (what to check), 9068.
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

# Signatures by a key of the provider alone: those by a secret would let its readers sign.
_ALGORITHMS = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA"),
)
# Clocks of two machines differ.
_SKEW_S = 30
# Providers announce a new key before they sign with it.
_REFRESH_S = 300.0
# Of a provider that does not answer, and of tokens that name a key which it has not published.
_AGAIN_S = 5.0
_TIMEOUT_S = 5.0
_MAX_TOKENS = 4096
_UNUSUAL = re.compile(r"[^!-~]")


class Provider:
    """Checks tokens of one issuer for one audience; its keys are fetched again as they get old.

    Args:
        issuer: as in the claim `iss`; its keys are found below it, by discovery.
        audience: what must be in the claim `aud`.
        claim: with the scopes; names of scopes in it may begin with "fovea:", and a dot leads
            into an object (`realm_access.roles`).

    Raises:
        InvalidOption: the issuer's address is not one of https, and not on this machine.
    """

    def __init__(self, issuer: str, audience: str, claim: str) -> None:
        url = httpx.URL(issuer)
        if url.scheme != "https" and url.host not in ("127.0.0.1", "::1", "localhost"):
            raise InvalidOption(
                f"the keys of {issuer} would come over a line that anybody may change: name an "
                "issuer with https"
            )
        self._issuer, self._audience, self._claim = issuer, audience, claim
        self._keys: dict[str, jwt.PyJWK] = {}
        self._principals: dict[str, Principal] = {}
        self._fetched = 0.0
        self._wake, self._closed = threading.Event(), False
        self._fetch()
        threading.Thread(target=self._refresh, name="issuer", daemon=True).start()

    def issues(self, token: str) -> bool:
        """Return True for what has the form of a token."""
        return token.count(".") == 2

    def principal(self, token: str, digest: str) -> Principal:
        """Return who holds a token; checked once, and known by its digest from then on.

        Raises:
            Unauthenticated: it does not hold.
            KeysPending: it is signed with a key that the provider has not published yet.
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
        # Signed claims may be of any type.
        except (jwt.PyJWTError, TypeError, ValueError, OverflowError) as error:
            raise Unauthenticated(f"this token does not hold: {error}") from None
        if len(self._principals) >= _MAX_TOKENS:
            self._principals.clear()
        self._principals[digest] = found
        return found

    def close(self) -> None:
        """Stop fetching the keys."""
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
                raise KeysPending("the keys of the issuer are being fetched: send again in 1 s")
            raise jwt.InvalidKeyError("it is signed with a key that its issuer does not have")
        return key

    def _principal(self, claims: Mapping[str, Any]) -> Principal:
        given = claims.get(self._claim)
        if given is None:
            given = claims
            for part in self._claim.split("."):
                given = given.get(part) if isinstance(given, dict) else None
        # Of OAuth 2.0 one text, and of most providers a list.
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
            # Tokens may ask for it all the time.
            if not self._closed and time.monotonic() - self._fetched > _AGAIN_S / 2:
                self._fetch()

    def _fetch(self) -> None:
        url = f"{self._issuer.rstrip('/')}/.well-known/openid-configuration"
        try:
            with httpx.Client(timeout=_TIMEOUT_S) as client:
                about = client.get(url).raise_for_status().json()
                if about["issuer"] != self._issuer:
                    raise ValueError(f"it says that it is {about['issuer']}")
                found = client.get(about["jwks_uri"]).raise_for_status().json()
            keys = {
                each.key_id or "": each
                for each in jwt.PyJWKSet.from_dict(found).keys
                if each.algorithm_name in _ALGORITHMS and each.public_key_use in (None, "sig")
            }
            if not keys:
                raise ValueError("it has no keys that sign")
        # Whatever it answers: a thread that ends would learn no new key any more.
        except Exception as error:  # noqa: BLE001
            log.error(
                "tokens of %s: its keys cannot be fetched from %s: %s", self._issuer, url, error
            )
        else:
            # What was checked by a key that is gone is checked again.
            self._keys, self._principals = keys, {}
        finally:
            self._fetched = time.monotonic()
