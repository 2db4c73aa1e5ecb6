"""The collected detectors of faces, and half of the others."""

from pathlib import Path

import httpx
import numpy as np
import pytest
from tests.engines.zoo.cases import FACES, FIRST
from tests.engines.zoo.checks import Checks

from fovea_engines.evaluation import samples
from fovea_engines.evaluation.agreement.overlap import iou

pytestmark = [pytest.mark.real, pytest.mark.slow]


class TestDetectors(Checks):
    detectors = FIRST

    def test_face_detectors_agree_on_a_face(self, served):
        """Trained by five groups, on one photograph of an astronaut: it is no accident."""
        body = (Path(samples.__file__).parent / "photographs" / "astronaut.jpg").read_bytes()
        boxes = []
        for name in FACES:
            answer = httpx.post(served(name, "onnxruntime"), content=body, timeout=60).json()
            [[found]] = (image["detections"] for image in answer["images"])
            assert (found["class_name"], len(found["keypoints"])) == ("face", 5)
            boxes.append([found["box"][side] for side in ("x1", "y1", "x2", "y2")])
        overlaps = iou(np.float32(boxes), np.float32(boxes))
        assert overlaps.min() >= 0.8, overlaps
