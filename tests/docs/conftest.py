"""A place to run the blocks of the pages in: models, images, `fovea`, and ports of its own."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest
from tests.forked import on_path
from tests.serving import free_ports

from fovea_engines.edit.input_shape import set_size

# Of each set, for builds that are shown: enough to run, not to judge.
IMAGES = 4
# The detector as `yolo export imgsz=320` writes it: a quarter of the work of 640.
SIZE = 320

Place = tuple[Path, dict[int, int]]


@pytest.fixture(scope="module")
def workplace(shared, tmp_path_factory) -> Iterator[Place]:
    """A folder with models and images, `fovea` on the path, and ports for those that are named.

    Yields:
        The folder; and 8000, 8001 and 8002 -> a free port.
    """
    folder = tmp_path_factory.mktemp("workplace")
    for model in ("yolov8n-seg-320", "mobilenetv2"):
        shutil.copy(shared / "models" / f"{model}.onnx", folder)
    detector = set_size(onnx.load(shared / "models" / "yolov8n.onnx"), (SIZE, SIZE)).model
    for copy in ("yolov8n", "ported"):
        onnx.save(detector, folder / f"{copy}.onnx")
    shutil.copy(shared / "data" / "bus.jpg", folder)
    coco = shared / "data" / "coco64"
    labels = json.loads((coco / "val.json").read_text())
    labels["images"] = sorted(labels["images"], key=lambda image: image["file_name"])[:IMAGES]
    ids = {image["id"] for image in labels["images"]}
    labels["annotations"] = [a for a in labels["annotations"] if a["image_id"] in ids]
    (folder / "val.json").write_text(json.dumps(labels))
    for name, source in (("val", "val"), ("images", "calibration")):
        (folder / name).mkdir()
        for image in sorted((coco / source).glob("*.jpg"))[:IMAGES]:
            (folder / name / image.name).symlink_to(image)
    ports = dict(zip((8000, 8001, 8002), free_ports(3), strict=True))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for kind, port in zip(("HTTP", "GRPC", "METRICS"), ports.values(), strict=True):
            patch.setenv(f"FOVEA_{kind}_PORT", str(port))
        patch.setenv("PATH", on_path(tmp_path_factory.mktemp("program")))
        yield folder, ports
