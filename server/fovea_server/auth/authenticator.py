"""Decides for each request whether the client may make it."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from fovea_preprocess.errors import FoveaError, Unauthenticated
from fovea_server.auth.restrictions import Restrictions
from fovea_server.settings import Settings
from fovea_server.traffic.call import CALL, Call
from fovea_server.traffic.principal import Principal, Scope

if TYPE_CHECKING:
    from fovea_server.auth.key_authenticator import KeyAuthenticator

# APIs without an API key: health probes, and "" for a method that does not exist.
_OPEN = frozenset(("health", ""))
_FOR_ALL = _OPEN | {"inference"}
_SCOPES: dict[str, Scope] = {"inference": "predict", "metrics": "metrics", "cameras": "cameras"}


class Authenticator:
    """Checks API keys, secrets of restricted APIs, and whether a client is on this machine.

    Args:
        settings: settings of the server.
        keys: checks the keys of the key file and of the identity provider; None if the server
            requires no keys.

    Attributes:
        keys: argument `keys`.
        http: secrets of restricted APIs of HTTP.
        grpc: secrets of restricted protocols of gRPC.

    Raises:
        InvalidOption: an option for restricted APIs is invalid.
    """

    def __init__(self, settings: Settings, keys: KeyAuthenticator | None) -> None:
        self.keys = keys
        self.http = Restrictions.parse(settings.http_restricted_api, for_all=settings.no_keys)
        self.grpc = Restrictions.parse(
            settings.grpc_restricted_protocol,
            for_all=settings.no_keys,
            prefix="triton-grpc-protocol-",
            noun="protocol",
        )

    def admit(self, call: Call, api: str, *, operation: str = "", control: str = "") -> None:
        """Check that a call may use an API, and record its purpose for the log and the metrics.

        Args:
            call: call of the request.
            api: name of the API in `restrictions.APIS`, "metrics", or "cameras" for camera images;
                "" for a method that does not exist.
            operation: value for `Call.operation`, if the call runs a model; otherwise "".
            control: log text that describes how the call changes the server; "" if it changes
                nothing.

        Raises:
            Restricted: the call does not have the secret of the API, or the client is on another
                machine.
            Unauthenticated: the call has no valid API key.
            Forbidden: the API key does not allow this call.
        """
        restrictions = self.grpc if call.is_rpc else self.http
        call.probe = api == "health"
        if operation:
            call.infers(operation)
        if control:
            secret = restrictions.secret(api)
            call.controls(control, None if secret is None else secret[0])
        restrictions.check(api, call.header)
        if self.keys is not None and api not in _OPEN:
            needs_control = control or api == "shared-memory"
            scope = "control" if needs_control else _SCOPES.get(api)
            call.again = partial(self._principal, self.keys, call, scope)
            principal = call.again()
            principal.check_model(call.model)
            if needs_control and not call.model:
                principal.check_whole()
        elif api == "health" and self.keys is not None and call.token is not None:
            # A probe with a valid key gets a detailed response. A probe without a valid key gets a
            # response without details.
            with suppress(FoveaError):
                call.principal = self.keys.principal(call.token)
        elif control or api not in _FOR_ALL:
            restrictions.check_local(api, call.client, call.header)

    def _principal(self, keys: KeyAuthenticator, call: Call, scope: Scope | None) -> Principal:
        if call.token is None and call.header("authorization"):
            raise Unauthenticated(
                "the Authorization header has an unknown scheme: write Authorization: Bearer KEY, "
                "or X-API-Key: KEY"
            )
        # Set the principal before its scope is checked, so that the log of a rejected call contains
        # the principal.
        call.principal = principal = keys.principal(call.token)
        if scope is not None:
            principal.check_scope(scope)
        return principal

    def sees(self, model: str) -> bool:
        """Return whether the client of the current request may see the name of this model."""
        if (call := CALL.get()) is None:
            return True
        if call.principal is not None:
            return call.principal.takes(model)
        restrictions = self.grpc if call.is_rpc else self.http
        return self.keys is None and restrictions.lets_all_in(call.client, call.header)

    def close(self) -> None:
        """Stop watching the key file, and write the usage of the quotas."""
        if self.keys is not None:
            self.keys.close()
