"""Reports models that fit several head families, with the results of each family."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fovea_engines.build.plan import BuildPlan
from fovea_engines.build.prepare import PreparedModel
from fovea_engines.drawing.drawing import add_caption, draw, encode
from fovea_engines.evaluation.observe import Observer
from fovea_engines.evaluation.samples import sample_images
from fovea_engines.heads.presets import default_preprocess
from fovea_engines.heads.recognise import Observe, open_head
from fovea_engines.heads.recognition import Recognition, accept_family
from fovea_engines.repository.repository import FAILED_FOLDER, ModelRepository
from fovea_engines.results.options import PredictOptions
from fovea_engines.results.task_result import TaskResult
from fovea_engines.results.vocabulary import Vocabulary
from fovea_engines.session import TensorSpec
from fovea_preprocess.errors import InvalidOption
from fovea_preprocess.letterbox import fit
from fovea_preprocess.spec import PreprocessSpec


def check_head_decided(plan: BuildPlan, prepared: PreparedModel) -> None:
    """Check that only one head family fits a model.

    Raises:
        InvalidOption: several head families fit. The message lists them with their results.
    """
    if prepared.head.open:
        raise _question(plan, prepared)


def _question(plan: BuildPlan, prepared: PreparedModel) -> InvalidOption:
    """Return the error for a model that fits several head families.

    The detections of each family are drawn on the first sample image, side by side, and saved.
    """
    recognition, inputs, metadata = prepared.head, prepared.inputs, prepared.metadata
    observe = Observer(prepared.graph, prepared.trained, plan.check_images)
    name, pixels = next(sample_images(plan.check_images, 1))
    heads = " or ".join(f"--head {family}" for family in recognition.open)
    question = f"{recognition.reason}: choose {heads}, or --head tensors to serve the raw tensors"
    if recognition.unseen:
        show = "; or give --images with objects that the model detects" if observe(None) else ""
        return InvalidOption(f"{question}{show}")
    panes, answers = [], []
    for family in recognition.open:
        spec = default_preprocess(family, inputs, metadata, trained=prepared.trained)
        found = _detect(recognition, inputs, family, spec, observe, pixels.shape[:2])
        answers.append(f"--head {family} finds {found.summary}")
        panes.append(add_caption(draw(found, pixels, Vocabulary(plan.labels)), f"--head {family}"))
    folder = ModelRepository(plan.repository).empty_folder(plan.name, FAILED_FOLDER)
    path = folder / "heads.jpg"
    path.write_bytes(encode(np.hstack(panes), "image/jpeg"))
    return InvalidOption(f"{question}. On {name}, {', '.join(answers)}; {path} shows the results")


def _detect(
    recognition: Recognition,
    inputs: Sequence[TensorSpec],
    family: str,
    spec: PreprocessSpec,
    observe: Observe,
    sides: tuple[int, ...],
) -> TaskResult:
    """Return the results of a head family on the first sample image.

    `sides` is the (height, width) of this image in pixels.
    """
    [verdict] = (one for one in recognition.verdicts if one.family == family)
    head = open_head(accept_family(verdict, "", {}), inputs)
    assert head is not None, "it has a family"
    found = head.decode(observe(family)[0], 0, PredictOptions())
    return found.to_source(fit(spec, sides[1], sides[0]))
