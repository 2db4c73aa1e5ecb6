"""Converts results for images to tensors of the v2 protocol, and describes these tensors."""

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
    """Convert the results of n images (n >= 1) to tensors of shape [n, ...]."""
    return output_tensors(type(found[0]).to_tensors(found, vocabulary, options))


def output_tensors(arrays: Mapping[str, Array]) -> list[OutputTensor]:
    """Convert arrays to outputs whose datatypes have the protocol's names."""
    return [OutputTensor(name, NAMES[array.dtype], array) for name, array in arrays.items()]


def image_outputs(head: Head, *, of_pipeline: bool = False) -> list[dict[str, Any]]:
    """Return the name, datatype and shape of each tensor in a response to images.

    A size of -1 is the number of images or a variable size. A model's metadata does not list these
    tensors as outputs, because perf_analyzer and Ultralytics' client request all listed outputs,
    even if they send tensors instead of images.

    Args:
        head: head of the model.
        of_pipeline: True to add the tensor with the results of the pipeline's later models.
    """
    listed = RESULT_OF[head.task].outputs(head.task, head.skeleton)
    return [
        {"name": each.name, "datatype": NAMES[each.numpy_dtype], "shape": list(each.shape)}
        for each in [*listed, *([STAGE_RESULTS] * of_pipeline)]
    ]
