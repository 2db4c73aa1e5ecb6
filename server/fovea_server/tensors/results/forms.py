"""Lists the forms of results: their JSON, their tensors, and the names of these tensors.

Each task has a file here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fovea_engines.detect.detections import Detections
from fovea_engines.detect.heads.base import Head
from fovea_engines.detect.options import PredictOptions
from fovea_engines.detect.task_result import TaskResult
from fovea_server.tensors.image_messages import Vocabulary
from fovea_server.tensors.messages import OutputTensor
from fovea_server.tensors.results.attributes import ATTRIBUTES
from fovea_server.tensors.results.classes import CLASSES
from fovea_server.tensors.results.embedding import EMBEDDING
from fovea_server.tensors.results.findings import FINDINGS, add_findings, findings_tensor
from fovea_server.tensors.results.form import Form
from fovea_server.tensors.results.maps import CLASS_MAP, DEPTH, FOREGROUND
from fovea_server.tensors.results.objects import OBJECTS
from fovea_server.tensors.results.pictures import PICTURE
from fovea_server.tensors.results.reading import READING

_FORMS: tuple[Form[Any], ...] = (
    OBJECTS,
    CLASSES,
    CLASS_MAP,
    FOREGROUND,
    DEPTH,
    EMBEDDING,
    ATTRIBUTES,
    READING,
    PICTURE,
)
_BY_VALUE = {form.value: form for form in _FORMS}
_BY_TASK = {task: form for form in _FORMS for task in form.tasks}


def result_json(found: TaskResult, words: Vocabulary, options: PredictOptions) -> dict[str, Any]:
    """Return the fields that a result adds to an `ImageAnswer`."""
    answer = _BY_VALUE[type(found)].json(found, words, options)
    if isinstance(found, Detections) and found.findings is not None:
        add_findings(answer["detections"], found.findings, options)
    return answer


def result_tensors(
    found: Sequence[TaskResult], words: Vocabulary, options: PredictOptions
) -> list[OutputTensor]:
    """Convert the results of n images, at least one, to tensors [n, ...]."""
    tensors = _BY_VALUE[type(found[0])].tensors(found, words, options)
    said = [
        one.findings for one in found if isinstance(one, Detections) and one.findings is not None
    ]
    return [*tensors, findings_tensor(said, options)] if said else tensors


def image_outputs(head: Head, *, composite: bool = False) -> list[dict[str, Any]]:
    """Return name, datatype and shape of each tensor; -1 is the images, or a size that varies.

    A `composite` adds what its later models say of each object.
    They are not among the outputs of a model's metadata: perf_analyzer and Ultralytics' client ask
    for all outputs that are listed there, also when they send tensors.
    """
    return [
        {"name": name, "datatype": datatype, "shape": list(shape)}
        for name, datatype, shape in [*_BY_TASK[head.task].outputs(head), *([FINDINGS] * composite)]
    ]
