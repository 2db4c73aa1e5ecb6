"""What both transports refuse before they look at a request's content, in Triton's words."""

from __future__ import annotations

from fovea_preprocess.errors import Unsupported
from fovea_server.models.model import ServedModel


def refuse_decoupled(model: ServedModel, caller: str) -> None:
    """Refuse a model that answers a request with any number of answers, where one is expected.

    Args:
        model: that is asked for.
        caller: what expects one answer; Triton's name of it.

    Raises:
        Unsupported: the model is decoupled.
    """
    if model.config.model_transaction_policy.decoupled:
        raise Unsupported(f"{caller} doesn't support models with decoupled transaction policy")


def refuse_repository(name: str | None) -> None:
    """Refuse a request that names one of several repositories; there is one, without a name.

    Raises:
        Unsupported: it names one.
    """
    if name:
        raise Unsupported("'repository_name' specification is not supported")
