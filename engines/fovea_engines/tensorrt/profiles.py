"""Optimization profiles: the batches that an engine is made for."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from fovea_preprocess.errors import InvalidOption, UnsupportedModel


@dataclass(frozen=True, slots=True)
class Profile:
    """The batches that one profile takes.

    Attributes:
        min: fewest rows, at least 1.
        opt: rows that it is fastest with.
        max: most rows.

    Raises:
        InvalidOption: on construction, when they do not ascend.
    """

    min: int
    opt: int
    max: int

    def __post_init__(self) -> None:
        if not 1 <= self.min <= self.opt <= self.max:
            raise InvalidOption(
                f"profile is {self}; its batches must ascend from 1 or more, e.g. 1,4,8"
            )

    def __str__(self) -> str:
        return f"{self.min},{self.opt},{self.max}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """A profile as it is typed: "1,4,8".

        Raises:
            InvalidOption: it is none.
        """
        if not re.fullmatch(r"\s*\d{1,6}\s*(,\s*\d{1,6}\s*){2}", text):
            raise InvalidOption(f"profile is {text!r}; write three batches MIN,OPT,MAX, e.g. 1,4,8")
        return cls(*map(int, text.split(",")))


def add_profiles(builder: Any, config: Any, network: Any, profiles: Sequence[Profile]) -> None:
    """Give a build its profiles; a network whose batch is fixed gets none.

    Args:
        builder: `Builder`.
        config: `IBuilderConfig`.
        network: `INetworkDefinition`.
        profiles: at least one.

    Raises:
        InvalidOption: the batch is fixed to another one.
        UnsupportedModel: more than the batch of an input is dynamic.
    """
    shapes = {}
    for position in range(network.num_inputs):
        tensor = network.get_input(position)
        shapes[tensor.name] = tuple(tensor.shape)
    for name, shape in shapes.items():
        _check(name, shape, profiles)
    dynamic = {name: shape[1:] for name, shape in shapes.items() if shape[:1] == (-1,)}
    for wanted in profiles if dynamic else ():
        profile = builder.create_optimization_profile()
        for name, row in dynamic.items():
            batches = (wanted.min, wanted.opt, wanted.max)
            profile.set_shape(name, *((rows, *row) for rows in batches))
        config.add_optimization_profile(profile)


def _check(name: str, shape: tuple[int, ...], profiles: Sequence[Profile]) -> None:
    if -1 in shape[1:]:
        raise UnsupportedModel(
            f"input {name!r} is {_text(shape)}: only its batch may be dynamic here; "
            "fix the others, e.g. with --size 640x640"
        )
    if not shape or shape[0] == -1:
        return
    for profile in profiles:
        if profile.max != shape[0]:
            raise InvalidOption(
                f"profile {profile} does not fit input {name!r}, whose batch is fixed to "
                f"{shape[0]}: leave --profile out, or export with a dynamic batch"
            )


def _text(shape: tuple[int, ...]) -> str:
    return "x".join("?" if length == -1 else str(length) for length in shape)
