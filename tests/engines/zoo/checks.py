"""What is true of every collected detector."""

from typing import ClassVar

import onnx
import pytest
from tests.engines.zoo import cases
from tests.engines.zoo.cases import HEADS, expected
from tests.engines.zoo.rows import assert_rows

from fovea_engines.build.build import build
from fovea_engines.engine import Engine
from fovea_engines.evaluation.dataset import read_dataset
from fovea_engines.evaluation.evaluate import detect_with, evaluate
from fovea_engines.evaluation.samples import read_image
from fovea_engines.heads.registry import FAMILIES
from fovea_engines.inspect.diff import diff
from fovea_engines.onnx_graph.load import load
from fovea_engines.onnx_graph.normalise import pin_inputs
from fovea_engines.quantization import search
from fovea_engines.repository.repository import FAILED_FOLDER, REPORT_FILE
from fovea_engines.results.options import PredictOptions
from fovea_preprocess.errors import Disagreement, UnsupportedModel


def folder_of(plan):
    return plan.repository / plan.name / "1"


@pytest.mark.skipif(
    not cases.FILES, reason=f"the collected models are absent: {HEADS} is not there"
)
class Checks:
    """The tests of some detectors, which a subclass names."""

    detectors: ClassVar[list[str]]

    def pytest_generate_tests(self, metafunc):
        """Give a test the detectors that it is about, by the names of its arguments."""
        if "own_layers" in metafunc.fixturenames:
            own = [name for name in self.detectors if name not in cases.TWINS]
            metafunc.parametrize("own_layers", own)
        elif "backend" in metafunc.fixturenames:
            metafunc.parametrize(("detector", "backend"), cases.in_backends(self.detectors))
        elif "detector" in metafunc.fixturenames:
            metafunc.parametrize("detector", self.detectors)

    def test_rows_are_those_of_the_family(self, served, shared, detector, backend):
        assert_rows(served(detector, backend), detector, shared)

    def test_images_and_suppression_are_in_the_graph(self, built_whole, detector, bus, tmp_path):
        """The build has compared what is found with and without; here the answers are labels."""
        folder, pixels = folder_of(built_whole(detector)), read_image(bus / "bus.jpg")
        height, width = pixels.shape[:2]
        lines = []
        for row in expected(detector)["images"]["bus.jpg"]:
            sides = zip(row["box"], (width, height) * 2, strict=True)
            x1, y1, x2, y2 = (min(max(side / most, 0), 1) for side, most in sides)
            if x1 < x2 and y1 < y2:
                box = ((x1 + x2) / 2, (y1 + y2) / 2, x2 - x1, y2 - y1)
                lines.append(" ".join(map(str, (row["class_id"], *box))))
        (tmp_path / "bus.txt").write_text("\n".join(lines))
        with Engine.open(folder) as engine:
            card = engine.card
            labels = read_dataset(tmp_path, bus).match_classes(engine.labels, card.num_classes)
            accuracy = evaluate(detect_with(engine), labels)
            assert len(engine.detect(pixels, PredictOptions(conf=0.2)))
        # Where the program gives a box several classes, it is another answer.
        assert cases.case_of(detector).several or accuracy.map50 > 0.6
        assert (card.inputs[0].dtype == "uint8") == (detector not in cases.IN_FLOATS)
        assert not FAMILIES[card.family].duplicates
        assert card.agreement.quality > 0.99
        assert card.agreement.detections
        report = (folder / REPORT_FILE).read_text()
        # The file of TensorFlow takes decoded images as it is.
        if detector not in {"tf-od", *cases.IN_FLOATS}:
            assert card.source_preprocess is not None
            assert "in the graph" in report
        assert "## Agreement" in report

    def test_layers_are_those_of_its_source(self, built_whole, own_layers, bus, tmp_path):
        plan = built_whole(own_layers)
        source = plan.source
        if own_layers in cases.BRANCHES:
            # `diff` runs a file without a batch dimension at its usual size alone.
            model = load(source).proto
            pin_inputs(model, plan.size)
            source = tmp_path / "pinned.onnx"
            onnx.save(model, source)
        found = diff(source, folder_of(plan), images=bus)
        assert found.first is None, found.causes
        assert len(found.layers) > 50

    def test_int8_agrees_or_says_why_not(self, own_layers, bus, tmp_path, monkeypatch):
        """With a search of two blocks for those that must stay float."""
        monkeypatch.setattr(search, "_MAX", 2)
        monkeypatch.setattr(search, "_FEWEST", 2)
        given = {"images": bus, "precision": "int8", "calibration": bus}
        plan = cases.plan_of(own_layers, own_layers, tmp_path, "onnxruntime", **given)
        if own_layers in cases.BRANCHES:
            with pytest.raises(UnsupportedModel, match=r"control flow .*--precision fp32"):
                build(plan)
            return
        folder, refused = folder_of(plan), ""
        try:
            card = build(plan)
        except Disagreement as error:
            folder, refused = tmp_path / own_layers / FAILED_FOLDER, str(error)
        except UnsupportedModel as error:
            refused = str(error)
        if "INT8 passes the check only if all" in refused:
            return
        if refused:
            assert "INT8 has an agreement of 0." in refused
        else:
            assert card.agreement.quality >= 0.8
            assert card.calibration.images == 1
        assert "## Agreement" in (folder / REPORT_FILE).read_text()
