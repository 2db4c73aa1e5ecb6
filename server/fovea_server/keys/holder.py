"""The holder of a key: what it allows, and what is left of it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatchcase

from fovea_preprocess.errors import Forbidden
from fovea_server.keys.bucket import TokenBucket
from fovea_server.keys.key import Scope
from fovea_server.keys.quota import Meter


@dataclass(frozen=True, slots=True)
class Holder:
    """The holder of a key of the file, or of a token of the company's provider.

    Attributes:
        name: in the log and in traces.
        label: in the metrics, where there may not be one for each user.
        models: patterns of names; none for every model.
        expires: None for never.
        bucket: of the rate; None without one.
        meter: of the quota; None without one.
    """

    name: str
    label: str
    scopes: frozenset[Scope]
    models: tuple[str, ...] = ()
    expires: datetime | None = None
    bucket: TokenBucket | None = None
    meter: Meter | None = None

    def check_scope(self, scope: Scope) -> None:
        """Raise Forbidden if the holder lacks a scope."""
        if scope not in self.scopes:
            raise Forbidden(
                f"key '{self.name}' lacks the scope '{scope}': it has "
                f"{', '.join(sorted(self.scopes)) or 'none'}"
            )

    def check_model(self, model: str) -> None:
        """Raise Forbidden if the holder may not use a model of this name; "" is none."""
        if model and self.models and not any(fnmatchcase(model, each) for each in self.models):
            raise Forbidden(
                f"key '{self.name}' is not for this model: it is for {', '.join(self.models)}"
            )

    def charge(self, images: int) -> None:
        """Count images; RateLimited if the rate or the quota has no room for them."""
        if self.bucket is not None:
            self.bucket.take(images)
        if self.meter is not None:
            self.meter.take(images)
