"""INT8 end to end: the blocks that stay in float, and the gate with and without labels."""

import shutil
from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import helper
from tests.drawn import draw
from tests.engines.noting import Noting
from tests.engines.sabotage import plant_outlier
from tests.engines.tiny import constant

from fovea_engines.build import int8
from fovea_engines.build.acceptance import MIN_QUALITY, rejection
from fovea_engines.build.build import build
from fovea_engines.build.int8 import BUDGET
from fovea_engines.build.plan import BuildPlan
from fovea_engines.build.prepare import prepare
from fovea_engines.engine import Engine
from fovea_engines.progress import Progress
from fovea_engines.quantization import search
from fovea_engines.quantization.half import to_half
from fovea_engines.quantization.ranges import RANGES_FILE
from fovea_engines.repository.card import EngineCard
from fovea_engines.repository.repository import FAILED_FOLDER, ModelRepository
from fovea_preprocess.errors import Disagreement, InvalidOption, UnsupportedModel

pytestmark = pytest.mark.slow

ALL = {f"layer.{i}" for i in range(6)}


@pytest.fixture(scope="module")
def built(network, images, tmp_path_factory) -> tuple[BuildPlan, EngineCard, Noting]:
    """The plan of an INT8 engine whose file can be read as ONNX; not to be written to."""
    repository, progress = tmp_path_factory.mktemp("int8") / "r", Noting()
    plan = BuildPlan(
        network, "net", repository, "onnxruntime", precision="int8", calibration=images
    )
    return plan, build(plan, progress), progress


@pytest.fixture
def plan(built, tmp_path) -> BuildPlan:
    """The same plan in an empty repository."""
    return replace(built[0], repository=tmp_path / "r")


def with_outliers(model, path, *convs: int, factor: float = 1000):
    spoilt = onnx.load(model)
    names = [plant_outlier(spoilt, conv, factor) for conv in convs]
    onnx.save(spoilt, path)
    return path, names


def int8_layers(plan: BuildPlan, version: int = 1) -> set[str]:
    """Names of the convolutions of a built engine that take quantised inputs."""
    folder = ModelRepository(plan.repository).folder(plan.name, version)
    nodes = onnx.load(folder / "model.onnx").graph.node
    made = {node.output[0] for node in nodes if node.op_type == "DequantizeLinear"}
    return {node.name for node in nodes if node.op_type == "Conv" and node.input[0] in made}


def test_nothing_stays_in_float_where_nothing_need(built):
    plan, card, progress = built
    assert card.precision == "int8"
    assert card.agreement.quality >= BUDGET
    assert int8_layers(plan) == ALL
    assert (card.calibration.layers, card.calibration.kept_float) == (6, ())
    assert card.calibration.method == "percentile"
    assert card.calibration.preprocess_sha256 == card.preprocess.digest
    assert [note for note in progress.notes if "every block in INT8" in note]
    assert list(progress.seconds) == [
        "load", "normalise", "head", "calibrate", "sensitivity", "compile", "agreement",
    ]  # fmt: skip
    assert "gain" not in (plan.repository / "net" / "1" / "card.md").read_text()
    # A classifier must keep its first class.
    for share, refused in ((0.81, False), (0.79, True)):
        agreement = replace(card.agreement, same_top=share)
        assert bool(rejection(replace(card, agreement=agreement), 0.01)) == refused


@pytest.mark.parametrize("factor", [100, 1000])
def test_the_search_finds_the_blocks_to_blame_and_stops(plan, tmp_path, factor):
    """Where the factor is large, each of the two hides the other."""
    model, bad = with_outliers(plan.source, tmp_path / "m.onnx", 0, 3, factor=factor)
    plan, progress = replace(plan, source=model), Noting()
    card = build(plan, progress)
    assert set(card.calibration.kept_float) == set(bad)
    assert int8_layers(plan) == ALL - set(bad)
    assert card.agreement.quality >= BUDGET
    for name in bad:
        assert any(note.endswith(f"{name} stays in float") for note in progress.notes)
    assert any(f"with {len(bad)} of 6 blocks in float" in note for note in progress.notes)
    report = (plan.repository / "net" / "1" / "card.md").read_text()
    assert sum("float |" in line for line in report.splitlines()) == len(bad)


def test_patterns_pick_layers(plan, monkeypatch):
    card = build(replace(plan, keep_float=("layer.[14]", "*.5")))
    kept = {"layer.1", "layer.4", "layer.5"}
    assert set(card.calibration.kept_float) == kept
    assert card.calibration.layers == 3
    assert int8_layers(plan) == ALL - kept
    with pytest.raises(InvalidOption, match=r"layer\.0"):
        build(replace(plan, keep_float=("layer.0", "last")))
    with pytest.raises(InvalidOption, match="FP32"):
        build(replace(plan, keep_float=("layer.?",)))

    def keep_all(budget, base, ranking, margin):
        return ranking, margin(layer for one in ranking for layer in one.layers)

    # An engine without an INT8 layer is not called INT8.
    monkeypatch.setattr(int8, "BUDGET", 1.1)
    monkeypatch.setattr(search, "keep_until", keep_all)
    with pytest.raises(UnsupportedModel, match="fp16"):
        build(plan)


def test_models_that_int8_cannot_be_made_of(tiny_model, plan, tmp_path):
    """Float16 and quantised weights are built as they are."""
    with pytest.raises(UnsupportedModel, match="fp16"):
        build(replace(plan, source=tiny_model))
    onnx.save(to_half(onnx.load(plan.source)), tmp_path / "half.onnx")
    weights = onnx.load(plan.source)
    layer = next(node for node in weights.graph.node if node.op_type == "Conv")
    real = helper.make_node("DequantizeLinear", ["integers", "scale"], [layer.input[1]])
    weights.graph.node.insert(0, real)
    [floats] = [w for w in weights.graph.initializer if w.name == layer.input[1]]
    weights.graph.initializer.remove(floats)
    weights.graph.initializer.append(constant("integers", np.ones(floats.dims, np.int8)))
    weights.graph.initializer.append(constant("scale", np.float32(0.01)))
    onnx.save(weights, tmp_path / "weights.onnx")
    for name in ("half", "weights"):
        other = replace(plan, source=tmp_path / f"{name}.onnx", name=name)
        for precision in ("fp16", "int8"):
            with pytest.raises(UnsupportedModel, match=f"{precision} needs float32"):
                build(replace(other, precision=precision))
        assert build(replace(other, precision="fp32")).precision == "fp32"


def test_a_refused_build_leaves_what_was_served_and_a_report(built, plan, tmp_path):
    shutil.copytree(built[0].repository, plan.repository)
    with Engine.open(plan.repository / "net" / "1") as engine:
        row = np.random.default_rng(0).random((1, 3, 64, 64), np.float32)
        before = engine.session.infer({"images": row})["out"]
    model, bad = with_outliers(plan.source, tmp_path / "m.onnx", 2)
    worse = replace(plan, source=model, keep_float=())
    with pytest.raises(Disagreement, match="--exclude-nodes auto") as refused:
        build(worse)
    assert refused.value.code == "disagreement"
    assert ModelRepository(plan.repository).versions("net") == (1,)
    with Engine.open(plan.repository / "net" / "1") as engine:
        assert (engine.session.infer({"images": row})["out"] == before).all()
    failed = plan.repository / "net" / FAILED_FOLDER
    card = EngineCard.read(failed / "card.json")
    assert card.refused in (failed / "card.md").read_text()
    assert card.agreement.quality < MIN_QUALITY["int8"]
    assert not list(plan.repository.glob(".*staging*"))
    # What the refusal advises helps.
    assert build(replace(worse, keep_float=("auto",))).calibration.kept_float == tuple(bad)
    assert ModelRepository(plan.repository).versions("net") == (1, 2)


def test_missing_images_are_told_before_the_work(plan):
    recorder = Progress()
    with pytest.raises(InvalidOption, match="--calibration"):
        prepare(replace(plan, calibration=None), recorder)
    assert list(recorder.seconds) == ["load"]


def test_a_classifier_keeps_blocks_in_float_until_its_first_classes_agree(plan, tmp_path):
    """The network with a mean over each of its maps, and as many names."""
    model = onnx.load(plan.source)
    pooled = helper.make_node("GlobalAveragePool", ["out"], ["pooled"])
    model.graph.node.extend([pooled, helper.make_node("Flatten", ["pooled"], ["logits"])])
    classes = model.graph.output[0].type.tensor_type.shape.dim[1].dim_value
    del model.graph.output[:]
    logits = helper.make_tensor_value_info("logits", onnx.TensorProto.FLOAT, ["batch", classes])
    model.graph.output.append(logits)
    helper.set_model_props(model, {"names": str([f"class {i}" for i in range(classes)])})
    onnx.save(model, tmp_path / "classifier.onnx")
    card = build(replace(plan, source=tmp_path / "classifier.onnx"))
    assert (card.task, card.calibration.kept_float) == ("classify", ())
    assert card.agreement.same_top >= BUDGET
    assert card.agreement.score_drift == pytest.approx(0, abs=0.05)
    spoilt, _ = with_outliers(tmp_path / "classifier.onnx", tmp_path / "spoilt.onnx", 1)
    with pytest.raises(Disagreement):
        build(replace(plan, source=spoilt, keep_float=()))
    card = build(replace(plan, source=spoilt))
    assert card.calibration.kept_float
    assert card.agreement.least >= BUDGET


def test_labels_fail_a_build_that_loses_too_much(deep_detector, images, labels, tmp_path):
    """The labels are what the source finds, so any loss is the precision's."""
    plan = BuildPlan(
        deep_detector, "d", tmp_path / "r", precision="int8", calibration=images,
        keep_float=(), images=images, data=labels, max_drop=0.2,
    )  # fmt: skip
    card = build(plan)
    assert set(card.accuracy) == {"fp32", "fp16", "int8"}
    assert card.accuracy["fp32"].map50_95 > 0.99
    assert 0.8 < card.accuracy["int8"].map50_95 < 1
    model, _ = with_outliers(deep_detector, tmp_path / "m.onnx", 1)
    worse = replace(plan, source=model)
    with pytest.raises(Disagreement, match="--max-drop"):
        build(worse)
    assert ModelRepository(plan.repository).versions("d") == (1,)
    with Engine.open(plan.repository / "d" / "1") as engine:
        assert len(engine.detect(draw(64, 80, 0)))
    failed = plan.repository / "d" / FAILED_FOLDER
    assert EngineCard.read(failed / "card.json").accuracy["int8"].map50_95 < 0.8
    assert "**REFUSED**: mAP50-95 falls" in (failed / "card.md").read_text()
    assert (failed / "worst.jpg").is_file()
    # Labels decide, whatever the agreement: who allows the loss gets the engine.
    assert build(replace(worse, max_drop=0.99)).agreement.quality < MIN_QUALITY["int8"]


def test_the_search_goes_on_until_the_labels_agree(deep_detector, images, labels, tmp_path):
    plan = BuildPlan(
        deep_detector, "d", tmp_path / "r", precision="int8", calibration=images,
        images=images, data=labels, max_drop=0.02,
    )  # fmt: skip
    few = Noting()
    with pytest.raises(Disagreement, match="--exclude-nodes auto"):
        build(replace(plan, keep_float=()), few)
    assert any("labelled images are few for --max-drop 0.02" in note for note in few.notes)
    refused = EngineCard.read(plan.repository / "d" / FAILED_FOLDER / "card.json")
    assert refused.agreement.quality > BUDGET  # nothing but the labels tells
    # CPUs round differently, so that INT8 loses more on some: half of it may be lost.
    loss = refused.accuracy["fp32"].map50_95 - refused.accuracy["int8"].map50_95
    progress = Noting()
    card = build(replace(plan, max_drop=loss / 2), progress)
    assert card.calibration.kept_float
    assert card.accuracy["fp32"].map50_95 - card.accuracy["int8"].map50_95 <= loss / 2
    assert any("mAP50-95 -0.0" in note and "in float" in note for note in progress.notes)


def test_what_is_coarse_for_tensorrt_alone_stays_in_float(plan, tmp_path):
    model, bad = with_outliers(plan.source, tmp_path / "m.onnx", 0, factor=24)
    plan = replace(plan, source=model, tensorrt=tmp_path / "signed.onnx")
    coarse = build(replace(plan, keep_float=()))
    assert coarse.tensorrt.quality < BUDGET < coarse.agreement.quality
    # Both graphs are made of the ranges that the version keeps.
    assert (plan.repository / "net" / "1" / RANGES_FILE).is_file()
    signed = onnx.load(tmp_path / "signed.onnx").graph
    zeros = {w.data_type for w in signed.initializer if "zero_point" in w.name}
    assert zeros == {onnx.TensorProto.INT8}
    card = build(plan)
    assert card.calibration.kept_float == tuple(bad)
    assert min(card.tensorrt.quality, card.agreement.quality) >= BUDGET
    assert card.calibration.gains[bad[0]] > 0
    # Without a file for TensorRT nothing need stay.
    assert build(replace(plan, tensorrt=None)).calibration.kept_float == ()
