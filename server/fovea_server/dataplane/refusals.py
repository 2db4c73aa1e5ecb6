"""Checks of both transports before they read a request's content, with Triton's messages."""

from __future__ import annotations

from fovea_preprocess.errors import Unsupported
from fovea_server.models.model import ServedModel


def refuse_decoupled(model: ServedModel, caller: str) -> None:
    """Refuse a decoupled model, which sends any number of answers, where one is expected.

    Args:
        model: of the request.
        caller: Triton's name of the interface that expects one answer.

    Raises:
        Unsupported: the model is decoupled.
    """
    if model.config.model_transaction_policy.decoupled:
        raise Unsupported(f"{caller} doesn't support models with decoupled transaction policy")


def refuse_repository(name: str | None) -> None:
    """Refuse a request that names a repository: the only one has no name.

    Raises:
        Unsupported: the request names one.
    """
    if name:
        raise Unsupported("'repository_name' specification is not supported")
