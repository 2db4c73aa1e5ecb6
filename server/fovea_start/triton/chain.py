"""Puts the models of an ensemble into the order in which they run."""

from __future__ import annotations

from collections.abc import Mapping

from fovea_preprocess.errors import InvalidModel
from fovea_start.triton.models import TritonModel

_MOST_STEPS = 100


def in_order(models: Mapping[str, TritonModel], name: str) -> list[str]:
    """Return the models that a model runs, those of ensembles in it among them.

    Raises:
        InvalidModel: ensembles or steps wait for one another, or a tensor comes from nowhere.
    """
    return _in_order(models, name, (), [])


def _in_order(
    models: Mapping[str, TritonModel], name: str, above: tuple[str, ...], visits: list[str]
) -> list[str]:
    model = models.get(name)
    visits.append(name)
    if len(visits) > _MOST_STEPS:
        raise InvalidModel(f"ensemble {(*above, name)[0]} is too long: over {_MOST_STEPS} steps")
    if name in above:
        raise InvalidModel(f"ensemble {name} runs itself: {' -> '.join((*above, name))}")
    if model is None or model.kind != "ensemble":
        return [name]
    there = {tensor.name for tensor in model.config.input}
    left, order = list(model.config.steps), list[str]()
    while left:
        ready = [step for step in left if there.issuperset(step.input_map.values())]
        if not ready:
            waiting = ", ".join(step.model_name for step in left)
            missing = {v for step in left for v in step.input_map.values()} - there
            raise InvalidModel(
                f"the steps {waiting} of ensemble {name} cannot run: {', '.join(sorted(missing))} "
                "is no input, and no step before them makes it; correct its config.pbtxt"
            )
        for step in ready:
            there.update(step.output_map.values())
            order += _in_order(models, step.model_name, (*above, name), visits)
        left = [step for step in left if step not in ready]
    return order
