"""Checks of both transports before they read a request's content, with Triton's messages."""

from __future__ import annotations

from fovea_preprocess.errors import Unsupported
from fovea_server.models.model import ServedModel


def refuse_decoupled(model: ServedModel, caller: str) -> None:
    """Raise Unsupported for a decoupled model, which sends any number of answers.

    `caller` is Triton's name of the interface that expects one answer.
    """
    if model.config.model_transaction_policy.decoupled:
        raise Unsupported(f"{caller} doesn't support models with decoupled transaction policy")


def refuse_repository(name: str | None) -> None:
    """Raise Unsupported for a request that names a repository: the only one has no name."""
    if name:
        raise Unsupported("'repository_name' specification is not supported")
