"""Adds optimization profiles, the batches that an engine is built for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fovea_engines.repository.options import Profile
from fovea_preprocess.errors import InvalidOption, UnsupportedModel


def add_profiles(builder: Any, config: Any, network: Any, profiles: Sequence[Profile]) -> None:
    """Add profiles to a build; a network with a fixed batch gets none.

    Args:
        builder: `Builder`.
        config: `IBuilderConfig`.
        network: `INetworkDefinition`.
        profiles: at least one.

    Raises:
        InvalidOption: the network's batch is fixed to another size.
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
