"""Converts the results for images to tensors of the protocol, and lists these tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fovea_engines.heads.base import Head
from fovea_engines.results.options import PredictOptions
from fovea_engines.results.registry import RESULT_OF
from fovea_engines.results.stage_results import STAGE_RESULTS
from fovea_engines.results.task_result import TaskResult
from fovea_engines.results.vocabulary import Vocabulary
from fovea_engines.session import Array
from fovea_server.tensors.messages import OutputTensor
from fovea_server.tensors.wire import NAMES


def result_tensors(
    found: Sequence[TaskResult], vocabulary: Vocabulary, options: PredictOptions
) -> list[OutputTensor]:
    """Convert the results for n images, at least one, to tensors [n, ...]."""
    return output_tensors(type(found[0]).to_tensors(found, vocabulary, options))


def output_tensors(arrays: Mapping[str, Array]) -> list[OutputTensor]:
    """Return arrays with the protocol's names of their types."""
    return [OutputTensor(name, NAMES[array.dtype], array) for name, array in arrays.items()]


def image_outputs(head: Head, *, of_pipeline: bool = False) -> list[dict[str, Any]]:
    """Return name, datatype and shape of each tensor; -1 is the images, or a size that varies.

    With `of_pipeline`, they have what its later models find on each object.
    They are not among the outputs of a model's metadata: perf_analyzer and Ultralytics' client ask
    for all outputs that are listed there, also when they send tensors.
    """
    listed = RESULT_OF[head.task].outputs(head.task, head.skeleton)
    return [
        {"name": each.name, "datatype": NAMES[each.numpy_dtype], "shape": list(each.shape)}
        for each in [*listed, *([STAGE_RESULTS] * of_pipeline)]
    ]
