"""The collected models, `HEADS`, and how each is built and compared."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.conftest import SHARED

from fovea_engines.build.plan import BuildPlan
from fovea_engines.heads.presets import PRESETS, VARIANTS

HEADS = SHARED / "models" / "heads"
MMDET = {"channels": "BGR", "scale": 1.0, "anchor": "center", "unscale": "ratio"}
MMDET |= {"mean": (103.53, 116.28, 123.675), "std": (57.375, 57.12, 58.395)}


@dataclass(frozen=True)
class Case:
    """Differences between how a file's expected rows were made and what Fovea does by default.

    Attributes:
        given: options of the build: what a user settles where the family leaves it open.
        options: of the request: how the family's program suppresses, where not at IoU .7.
        score: largest difference of a score.
        images: only these can be compared.
        several: the program gives a box several classes.
    """

    given: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    score: float = 1e-3
    images: tuple[str, ...] = ()
    several: bool = False


STRICT, STRICTER = {"iou": 0.45}, {"iou": 0.3}
# What a head can have no other way: LibreYOLO gives a box every class over the threshold, where a
# head gives its best, and clips boxes before it suppresses. The rest is exact.
LIBREYOLO = Case(options=STRICT, several=True)
# A network that takes any size resizes by itself. It is served at one size, here that of bus.jpg:
# images of others would be resized twice, and their padding with them.
ANY_SIZE = Case(given={"size": (1080, 810)}, images=("bus.jpg",))
# The build asks, as exporters differ: `--preprocess family`.
FAMILY = {"preprocess": VARIANTS["family"]}
CASES = {
    "centerface": Case(options=STRICTER),
    "dfine": Case(given=FAMILY),
    "dfine-bare": Case(given=FAMILY),
    # Torch's antialias, which transformers uses, rounds otherwise than Pillow's: a grey level in a
    # tenth of the values, which moves the scores of untrained networks this far.
    "hf-detr": Case(given=FAMILY, score=2e-2),
    "hf-rtdetr": Case(given=FAMILY, score=3e-3),
    "libreyolo-yolo9t": LIBREYOLO,
    "mmdeploy": Case(given={"preprocess": MMDET}),
    "nanodet-m-416": Case(
        given={"preprocess": {"rounding": "down"}}, options={"iou": 0.6, "agnostic": True}
    ),
    "paddle": Case(given={"preprocess": PRESETS["stretch"]}),
    "picodet": LIBREYOLO,
    "ppyoloe": LIBREYOLO,
    "retinaface-mnet025": Case(given=FAMILY, options=STRICT),
    "rtdetrv2": Case(given=FAMILY),
    "rtdetrv2-bare": Case(given=FAMILY),
    "rtdetr-clothes": Case(given={"preprocess": {"resample": "linear"}}),
    "rtmdet": LIBREYOLO,
    "scrfd-500m": Case(options=STRICT),
    "tf-od": Case(given=FAMILY),
    "tv-fasterrcnn": ANY_SIZE,
    "tv-fcos": ANY_SIZE,
    "ultraface-rfb-320": Case(options=STRICTER),
    "yolo5face-500m": Case(
        given={"size": (320, 320), "preprocess": {"anchor": "top-left", "pad": 0}}, options=STRICT
    ),
    "yolonas": LIBREYOLO,
    "yolonas-obb": Case(options=STRICT),
    "yolov6-clothes": Case(options=STRICT),
    "yolov6-end2end": Case(given=FAMILY),
    "yolox-nano-decoded": Case(options=STRICT),
    "yunet-n-dynamic": Case(options=STRICT),
}
USUAL = Case()


def case_of(name: str) -> Case:
    return CASES.get(name, USUAL)


def expected(name: str) -> dict[str, Any]:
    """What the program of the family found: see README.md there."""
    stored: dict[str, Any] = json.loads((HEADS / f"{name}.expected.json").read_text())
    return stored


def plan_of(name: str, called: str, repository: Path, backend: str, **options: Any) -> BuildPlan:
    given = case_of(name).given
    return BuildPlan(HEADS / f"{name}.onnx", called, repository, backend, **given, **options)


FILES = sorted(path.stem for path in HEADS.glob("*.onnx"))
DETECTORS = [name for name in FILES if expected(name)["task"] in {"detect", "face"}]
# Compared tensor by tensor.
OTHERS = [name for name in FILES if name not in DETECTORS]
FACES = ("centerface", "retinaface-mnet025", "scrfd-500m", "yolo5face-500m", "yunet-n-dynamic")
# All detectors are served by OpenVINO, and by ONNX Runtime those that branch, suppress in the
# graph, or show a face.
IN_ONNXRUNTIME = {"mmdeploy", "paddle", "tf-od", "tv-fasterrcnn", "yolov6-end2end", *FACES}
# ONNX Runtime computes the normalised graph as it is, so each way to normalise is tried once.
IN_ONNXRUNTIME |= {"deeplabv3-mnv2", "yolo26-seg"}
# Their images are resized without rounding, so that decoded images cannot be taken.
IN_FLOATS = {"rfdetr"}
BRANCHES = {"tv-fasterrcnn", "tv-fcos"}
# Their layers are those of another file, so that INT8 and comparing layers show nothing new.
TWINS = {"dfine-bare", "libreyolo-dfine", "rtdetrv2-bare", "yolo26-not-end2end"}
TWINS |= {"mmdeploy", "paddle", "rtdetr-clothes", "tf-od", "ultralytics-rtdetr-clothes"}
TWINS |= {"yolonas-flat", "yolov6-clothes", "yolox-nano-decoded"}
# Outputs that a top-k fills: rows of almost equal scores may come in any order.
RANKED = {"yolo26-seg", "yolo26-obb", "yolo26-pose"}

# Two processes share the detectors. Those of faces are compared with one another.
FIRST = [name for name in DETECTORS if expected(name)["task"] == "face" or name < "r"]
SECOND = [name for name in DETECTORS if name not in FIRST]


def in_backends(names: list[str]) -> list[tuple[str, str]]:
    """The backends that each is built for, in FP32."""
    both = [name for name in names if name in IN_ONNXRUNTIME]
    return [(name, "openvino") for name in names] + [(name, "onnxruntime") for name in both]
