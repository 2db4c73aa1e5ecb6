"""The holder of a key, with the holder's permissions."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Literal

from fovea_preprocess.errors import Forbidden

Scope = Literal["predict", "control", "metrics", "capture", "cameras"]


@dataclass(frozen=True, slots=True)
class Principal:
    """The holder of a key from the key file, or of a token from an identity provider.

    Attributes:
        name: name of the holder in the log and in traces.
        label: label of the holder in the metrics; many holders may share a label.
        scopes: the permitted groups of operations.
        models: name patterns of the permitted models; empty for every model.
        expires: time at which the key expires; None for never.
    """

    name: str
    label: str
    scopes: frozenset[Scope]
    models: tuple[str, ...] = ()
    expires: datetime | None = None

    @property
    def called(self) -> str:
        """Description of the holder for messages."""
        return f"{'token' if self.name.startswith('jwt:') else 'key'} '{self.name}'"

    def takes(self, model: str) -> bool:
        """Return whether the holder may use a model of this name."""
        return not self.models or any(fnmatchcase(model, each) for each in self.models)

    def check_scope(self, scope: Scope) -> None:
        """Raise Forbidden if the holder lacks a scope; the scope "control" includes "cameras"."""
        if scope not in self.scopes and not (scope == "cameras" and "control" in self.scopes):
            has = ", ".join(sorted(self.scopes)) or "none"
            raise Forbidden(f"{self.called} lacks the scope '{scope}'; its scopes: {has}")

    def check_model(self, model: str) -> None:
        """Raise Forbidden if the holder may not use a model of this name.

        The name "" is permitted.
        """
        if model and not self.takes(model):
            raise Forbidden(
                f"{self.called} may not use model '{model[:60]}', but only {', '.join(self.models)}"
            )

    def check_whole(self) -> None:
        """Raise Forbidden if the holder may use only some models.

        Call this function for changes that affect all models.
        """
        if self.models:
            raise Forbidden(
                f"{self.called} may use only {', '.join(self.models)}, but this request changes "
                "the whole server: use a key for all models"
            )

    def charge(self, images: int) -> None:
        """Count images for the holder's rate limit and quota.

        Raise RateLimited if one is exceeded.
        """
