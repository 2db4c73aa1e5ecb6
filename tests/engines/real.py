"""Real models, normalised once, and what they make of a real image."""

import pickle
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from tests import slimmed

from fovea_engines.build.plan import BuildPlan
from fovea_engines.build.prepare import PreparedModel, prepare
from fovea_engines.evaluation.samples import image_files, read_image
from fovea_engines.heads.presets import PRESETS
from fovea_engines.progress import Progress
from fovea_engines.quantization.calibrate import Images, calibrate
from fovea_engines.quantization.ranges import Origin, Ranges
from fovea_preprocess.preprocessor import Preprocessor

DETECTORS = ("yolov5n", "yolov8n", "yolov10n", "yolox_nano", "yolov8n-pose", "yolov8n-seg-320")
OTHERS = ("mobilenetv2", "u2netp")
_TRAINED = {"mobilenetv2": PRESETS["imagenet"], "u2netp": PRESETS["stretch"]}
_IMAGES = 2


def _shared_by_the_run(name: str) -> Path:
    assert slimmed.shared_folder is not None
    return slimmed.shared_folder / name


@cache
def prepared(shared: Path, name: str) -> PreparedModel:
    """A model as a build writes precision into it; not to be changed."""
    source = shared / "models" / f"{name}.onnx"
    plan = BuildPlan(source, "model", Path("unused"), preprocess=_TRAINED.get(name))
    kept = _shared_by_the_run(f"prepared-{name}.pickle")
    return pickle.loads(slimmed.once(kept, lambda: pickle.dumps(prepare(plan, Progress()))))


@cache
def ranges(shared: Path, name: str) -> Ranges:
    """Its ranges on a few images, measured once a run."""
    kept = _shared_by_the_run(f"ranges-{name}.json")
    slimmed.once(kept, lambda: _measured(shared, name).encode())
    return Ranges.read(kept)


def _measured(shared: Path, name: str) -> Ranges:
    model = prepared(shared, name)
    files = image_files(shared / "data" / "coco64" / "calibration", _IMAGES)
    images = Images(files, model.preprocess, "")
    return calibrate(model.graph, images, Origin("", "", "", "minmax"), Progress())


@cache
def bus(shared: Path, name: str) -> np.ndarray:
    """bus.jpg as the model takes it, float32 [1, 3, height, width]."""
    spec = prepared(shared, name).preprocess
    row = np.empty((1, *spec.row_shape), np.float32)
    Preprocessor(spec)(read_image(shared / "data" / "bus.jpg"), row[0])
    return row


def run(model: onnx.ModelProto, row: np.ndarray) -> list[np.ndarray]:
    """What plain ONNX Runtime computes."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    return session.run(None, {session.get_inputs()[0].name: row})


def error(have: np.ndarray, want: np.ndarray) -> float:
    """Relative, of the whole array."""
    return float(np.linalg.norm(have - want) / np.linalg.norm(want))
