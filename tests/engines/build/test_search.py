"""The search for blocks that INT8 hurts: by hand, and as `fovea sensitivity` is typed."""

import json
from dataclasses import replace

import onnx
import pytest
from tests.engines.sabotage import plant_outlier

from fovea_engines.build import int8
from fovea_engines.build.build import build
from fovea_engines.build.int8 import Sensitivity
from fovea_engines.build.plan import BuildPlan
from fovea_engines.progress import Progress
from fovea_engines.quantization import search
from fovea_engines.quantization.search import keep_until, rank
from fovea_preprocess.errors import InvalidOption, UnsupportedModel

pytestmark = pytest.mark.slow

GROUPS = {"a": ("a.1", "a.2"), "b": ("b.1",), "c": ("c.1",)}


class Judged:
    """Agreement that is lost for each layer in INT8; remembers what it was asked."""

    def __init__(self, **loss: float) -> None:
        self._loss = {name.replace("_", "."): value for name, value in loss.items()}
        self.asked: list[set[str]] = []

    def __call__(self, floats) -> float:
        self.asked.append(set(floats))
        return max(0.0, 1 - sum(v for name, v in self._loss.items() if name not in set(floats)))


def test_blocks_are_ranked_by_what_they_gain():
    quality = Judged(a_1=0.01, a_2=0.02, b_1=0.3, c_1=0.1)
    base = quality(())
    ranking = rank(GROUPS, base, quality, Progress())
    assert [one.block for one in ranking] == ["b", "c", "a"]
    assert [one.gain for one in ranking] == pytest.approx([0.3, 0.1, 0.03])
    assert ranking[0].quality == pytest.approx(base + 0.3)
    assert ranking[2].layers == ("a.1", "a.2")
    assert quality.asked[1:] == [{"a.1", "a.2"}, {"b.1"}, {"c.1"}]


def test_blocks_that_hide_each_other_are_tried_alone_in_int8():
    quality = Judged(a_1=0.01, b_1=2.0, c_1=1.5)
    assert quality(()) == quality(("b.1",)) == quality(("c.1",)) == 0
    ranking = rank(GROUPS, 0.0, quality, Progress())
    assert [one.block for one in ranking] == ["b", "c", "a"]
    assert [one.gain for one in ranking] == pytest.approx([1, 1, 0.01])
    kept, reached = keep_until(0.9, 0.0, ranking, quality)
    assert [one.block for one in kept] == ["b", "c"]
    assert reached == pytest.approx(0.99)


@pytest.mark.parametrize(
    ("budget", "kept", "reached"),
    [(0.5, [], 0.57), (0.8, ["b"], 0.87), (0.9, ["b", "c"], 0.97), (0.999, ["b", "c", "a"], 1.0)],
)
def test_blocks_are_kept_until_the_budget_is_met(budget, kept, reached):
    quality = Judged(a_1=0.01, a_2=0.02, b_1=0.3, c_1=0.1)
    ranking = rank(GROUPS, quality(()), quality, Progress())
    trials = len(quality.asked)
    found, best = keep_until(budget, quality(()), ranking, quality)
    assert [one.block for one in found] == kept
    assert best == pytest.approx(reached)
    assert len(quality.asked) - trials - 1 == len(kept)


def test_what_gains_nothing_is_not_kept_and_the_best_is():
    ranking = [
        Sensitivity("a", ("a.1",), 0.6, 0.1),
        Sensitivity("b", ("b.1",), 0.55, 0.05),
        Sensitivity("c", ("c.1",), 0.5, 0.0),
    ]
    # Together they are worse than the first alone.
    kept, reached = keep_until(0.9, 0.5, ranking, lambda layers: 0.6 - 0.01 * len(layers))
    assert [one.block for one in kept] == ["a"]
    assert reached == pytest.approx(0.59)


@pytest.fixture
def spoilt(network, tmp_path):
    """A network with one bad layer."""
    model = onnx.load(network)
    assert plant_outlier(model, 1) == "layer.2"
    onnx.save(model, tmp_path / "my model [x].onnx")
    return tmp_path / "my model [x].onnx"


def test_the_command_ranks_blocks_and_says_what_to_type(fovea, spoilt, images, tmp_path):
    code, out, err = fovea("sensitivity", spoilt, "--calibration", images)
    assert code == 0, err
    for phase in ("load", "calibrate", "sensitivity"):
        assert phase in err
    rows = [line.split() for line in out.splitlines() if "layer." in line]
    assert rows[0][:2] == ["layer.2", "1"]
    assert len(rows) == 7  # six blocks, and the closing line
    assert float(rows[0][3]) > 0.3
    assert "with every block in INT8" in out
    assert out.splitlines()[-1].endswith("with: --keep-float layer.2")
    # Nothing was published, and no repository was made.
    assert not (tmp_path / "repository").exists()


def test_what_it_says_is_what_a_build_does(fovea, spoilt, images):
    arguments = ("--calibration", images, "--backend", "onnxruntime", "--calibrator", "minmax")
    code, out, err = fovea("sensitivity", spoilt, *arguments, "--json")
    assert code == 0, err
    found = json.loads(out)
    assert found["keep_float"] == ["layer.2"]
    assert found["agreement"] < 0.8 < found["agreement_kept"]
    assert found["blocks"][0] == {
        "block": "layer.2",
        "layers": ["layer.2"],
        "quality": found["agreement_kept"],
        "gain": pytest.approx(found["agreement_kept"] - found["agreement"]),
    }
    build = ("build", spoilt, "--name", "m", "--precision", "int8", *arguments, "--json")
    code, out, err = fovea(*build)
    assert code == 0, err
    assert json.loads(out)["card"]["calibration"]["kept_float"] == found["keep_float"]


def test_where_all_is_well_nothing_need_be_kept(fovea, network, images):
    code, out, err = fovea("sensitivity", network, "--calibration", images)
    assert code == 0, err
    assert "0.90 is enough: --keep-float none" in " ".join(out.split())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "Missing option '--calibration'"),
        (("--calibration", "absent"), "'absent' does not exist"),
        (("--calibration", "images", "--size", "big"), "HEIGHTxWIDTH"),
        (("--calibration", "images", "--preprocess", "x"), "none of yolo"),
        (("--calibration", "images", "--images", "."), "no image"),
    ],
)
def test_an_error_is_a_sentence(fovea, network, images, tmp_path, arguments, says):
    (tmp_path / "images").symlink_to(images)
    code, out, err = fovea("sensitivity", network, *arguments)
    assert code == 2
    assert out == ""
    assert says in err
    assert err.splitlines()[-1].startswith("error: ")


def test_models_without_a_choice_say_why(fovea, tiny_model, network, images, tmp_path):
    code, _, err = fovea("sensitivity", tiny_model, "--calibration", images)
    assert code == 1
    assert "no layer of the model gains from INT8" in err
    options = ("--precision", "int8", "--calibration", images, "--backend", "onnxruntime")
    assert fovea("build", network, *options, "--repository", tmp_path / "r")[0] == 0
    quantised = tmp_path / "r" / "network" / "1" / "model.onnx"
    code, _, err = fovea("sensitivity", quantised, "--calibration", images)
    assert code == 1
    assert "quantised by its exporter" in err


def test_an_engine_without_an_int8_layer_is_not_called_int8(network, images, tmp_path, monkeypatch):
    options = {"precision": "int8", "calibration": images}
    plan = BuildPlan(network, "net", tmp_path / "r", "onnxruntime", **options)
    with pytest.raises(InvalidOption, match="leaves all 6 layers in float, which is FP32"):
        build(replace(plan, keep_float=("layer.?",)))

    def keep_all(budget, base, ranking, margin):
        return ranking, margin(layer for one in ranking for layer in one.layers)

    monkeypatch.setattr(int8, "BUDGET", 1.1)
    monkeypatch.setattr(search, "keep_until", keep_all)
    with pytest.raises(UnsupportedModel, match=r"with all of its 6 layers left in float.*fp16"):
        build(plan)
