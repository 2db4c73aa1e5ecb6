"""Reads what people and programs wrote, and says what is wrong with it."""

from __future__ import annotations

from typing import TypeVar

from pydantic import BaseModel, ValidationError

from fovea_preprocess.errors import InvalidOption
from fovea_preprocess.mistakes import key_fault

Document = TypeVar("Document", bound=BaseModel)


def checked(kind: type[Document], given: object) -> Document:
    """Make a document of what was given; InvalidOption names the key that is wrong."""
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        # A key that is unknown may be one that is missing, misspelt.
        first = min(error.errors(), key=lambda one: one["type"] != "extra_forbidden")
        raise InvalidOption(key_fault(first, kind.model_fields)) from None
