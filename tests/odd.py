"""The demo model with outputs that no family knows, and a head of a user's own for them."""

import hashlib
import json
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from fovea_engines.repository.card import CARD_FILE, HEAD_FILE

HEAD = """
import numpy as np

from fovea_engines.api import CustomHead, corners, detections


class OddHead(CustomHead):
    outputs = ("where", "what")
    labels = tuple("0123456789")

    def decode(self, outputs, options):
        where, what = outputs["where"][0], outputs["what"][0]
        cy, cx, h, w = 256 * where.reshape(-1, 4).T
        boxes = corners(np.stack([cx, cy, w, h], 1))
        scores, class_ids = what.max(axis=0), what.argmax(axis=0)
        return detections(boxes, scores, class_ids, options)
"""


def odd_model(source: Path, target: Path) -> Path:
    """Write a YOLOv8 whose boxes are in units of 256 pixels, y before x, in pairs."""
    model = onnx.load(source)
    graph = model.graph
    [output] = graph.output
    batch, columns, boxes = output.type.tensor_type.shape.dim
    for name, value in {
        "parts": np.array([4, columns.dim_value - 4]),
        "order": np.array([1, 0, 3, 2]),
        "unit": np.float32(256),
        "pairs": np.array([0, boxes.dim_value, 2, 2]),
    }.items():
        graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    graph.node.extend(
        [
            helper.make_node("Split", [output.name, "parts"], ["boxes", "what"], axis=1),
            helper.make_node("Gather", ["boxes", "order"], ["ordered"], axis=1),
            helper.make_node("Transpose", ["ordered"], ["rows"], perm=[0, 2, 1]),
            helper.make_node("Div", ["rows", "unit"], ["shares"]),
            helper.make_node("Reshape", ["shares", "pairs"], ["where"]),
        ]
    )
    rows = batch.dim_param or batch.dim_value
    shapes = {
        "where": [rows, boxes.dim_value, 2, 2],
        "what": [rows, columns.dim_value - 4, boxes.dim_value],
    }
    del graph.output[:], model.metadata_props[:]
    graph.output.extend(
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in shapes.items()
    )
    onnx.save(model, target)
    return target


def replace_head(version: Path, text: str) -> None:
    """Put another head into the folder of a version, as if it had been built with that."""
    digest = hashlib.sha256(text.encode()).hexdigest()
    (version / HEAD_FILE).write_text(text)
    card = json.loads((version / CARD_FILE).read_text())
    card["files"][HEAD_FILE], card["family"] = digest, f"odd.py@{digest[:12]}"
    (version / CARD_FILE).write_text(json.dumps(card))
