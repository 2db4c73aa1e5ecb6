"""The settings of captures: of the server, and of one model in its fovea.toml."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from fovea_preprocess.errors import InvalidOption
from fovea_preprocess.mistakes import meant
from fovea_server.models.config.capture_rules import Rule, parse_rule
from fovea_server.models.config.checked import checked

SETTINGS_FILE = "fovea.toml"
_TABLES = ("capture",)


class CaptureTable(BaseModel):
    """`[capture]` of fovea.toml."""

    model_config = ConfigDict(extra="forbid", strict=True)

    rules: list[str] | None = None
    per_minute: int = Field(60, ge=0)
    blur: str | None = Field(None, min_length=1)


@dataclass(frozen=True, slots=True)
class CaptureRules:
    """The choice of images of one model.

    Attributes:
        rules: the first that takes an image names it; none keep nothing.
        per_minute: the most captures in a minute.
        blur: name of a model whose objects are blurred before anything is written.
    """

    rules: tuple[Rule, ...]
    per_minute: int
    blur: str | None


def read_rules(folder: Path, usual: tuple[str, ...]) -> CaptureRules:
    """Read `[capture]` of the fovea.toml in a model's folder, which may lack both.

    Args:
        folder: of the model.
        usual: rules of a model that names none.

    Raises:
        InvalidOption: the file is not as it should be, and how it should.
    """
    path = folder / SETTINGS_FILE
    try:
        document = tomllib.loads(path.read_text("utf-8-sig"))
    except FileNotFoundError:
        document = {}
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidOption(f"{path}: {error}") from None
    if unknown := sorted(set(document) - {*_TABLES}):
        raise InvalidOption(f"{path}: [{unknown[0]}] is no table of it{meant(unknown[0], _TABLES)}")
    try:
        table = checked(CaptureTable, document.get("capture", {}))
        given = usual if table.rules is None else tuple(table.rules)
        rules = tuple(parse_rule(text) for text in given)
    except InvalidOption as error:
        raise InvalidOption(f"{path}, [capture]: {error}") from None
    return CaptureRules(rules, table.per_minute, table.blur)


def check_rules(folder: Path, labels: Sequence[str] | None) -> None:
    """Check the file of a model's folder; raises as `read_rules`."""
    read = read_rules(folder, ())
    if read.blur is not None and not (folder.parent / read.blur).is_dir():
        there = [each.name for each in folder.parent.iterdir() if each.is_dir()]
        raise InvalidOption(
            f"{folder / SETTINGS_FILE}, [capture]: blur is '{read.blur}', which is no model here, "
            f"and without it nothing is kept{meant(read.blur, there)}"
        )
    for rule in read.rules:
        try:
            rule.check(labels)
        except InvalidOption as error:
            raise InvalidOption(f"{folder / SETTINGS_FILE}, [capture]: {error}") from None
