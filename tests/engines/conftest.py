"""Models, images and a repository that are made once."""

import json
from pathlib import Path

import pytest
from tests.engines.tiny import tiny_detector

from fovea_engines.build.build import build
from fovea_engines.build.plan import BuildPlan
from fovea_engines.engine import Engine
from fovea_engines.evaluation.samples import read_image
from fovea_engines.results.options import PredictOptions


@pytest.fixture(scope="session")
def deep_detector(tmp_path_factory) -> Path:
    """A detector with layers that INT8 can touch."""
    return tiny_detector(tmp_path_factory.mktemp("models") / "deep.onnx", depth=4)


@pytest.fixture(scope="session")
def labels(deep_detector, images, tmp_path_factory) -> Path:
    """A COCO file that calls right what `deep_detector` finds on `images`."""
    folder = tmp_path_factory.mktemp("labels")
    build(BuildPlan(deep_detector, "d", folder, "onnxruntime"))
    entries, annotations = [], []
    with Engine.open(folder / "d" / "1") as engine:
        for number, file in enumerate(sorted(images.iterdir())):
            pixels = read_image(file)
            height, width = pixels.shape[:2]
            entries.append({"id": number, "file_name": file.name, "width": width, "height": height})
            found = engine.detect(pixels, PredictOptions(conf=0.5))
            boxes = found.boxes.clip(0, [width, height, width, height])
            annotations += [
                {"image_id": number, "category_id": int(c), "bbox": [x, y, x2 - x, y2 - y]}
                for (x, y, x2, y2), c in zip(boxes.tolist(), found.class_ids, strict=True)
            ]
    categories = [{"id": i, "name": name} for i, name in enumerate(("cat", "dog", "bus"))]
    document = {"images": entries, "annotations": annotations, "categories": categories}
    (folder / "labels.json").write_text(json.dumps(document))
    return folder / "labels.json"
