"""Builds with auto: what is timed, what is verified, and what is kept."""

import json
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import onnx
import openvino as ov
import pytest
from onnx import helper
from tests.engines.noting import Noting
from tests.engines.qat import quantised_in_training
from tests.engines.sabotage import plant_outlier
from tests.engines.tiny import save

from fovea_engines.backends.onnxruntime import OnnxRuntimeBackend
from fovea_engines.build.assemble import HeldEngines
from fovea_engines.build.build import build
from fovea_engines.build.plan import BuildPlan, choices
from fovea_engines.build.prepare import prepare
from fovea_engines.device import sets_for
from fovea_engines.engine import Engine
from fovea_engines.evaluation.samples import image_files
from fovea_engines.evaluation.speed import Rates
from fovea_engines.progress import Progress
from fovea_engines.quantization.calibrate import Images, calibrate
from fovea_engines.quantization.ranges import Origin
from fovea_engines.repository.card import EngineCard
from fovea_engines.repository.repository import FAILED_FOLDER, REPORT_FILE, ModelRepository
from fovea_preprocess.errors import BackendUnavailable, Disagreement, InvalidOption

pytestmark = pytest.mark.slow

NO_VNNI = frozenset({"avx2", "fma"})
BFLOAT16 = frozenset({"avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16"})


def pretend_cpu(monkeypatch: pytest.MonkeyPatch, flags: frozenset[str]) -> None:
    """/proc/cpuinfo with these flags; what computes is the CPU that is here."""
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr("fovea_engines.device.cpu_flags", lambda *_: set(flags))


def pretend_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU with bfloat16: OpenVINO says it follows the hint, and computes in float32."""
    pretend_cpu(monkeypatch, BFLOAT16)
    asked: list[str] = []
    compile_model: Callable[..., ov.CompiledModel] = ov.Core.compile_model
    get_property = ov.CompiledModel.get_property

    def compiles(core, model, device, config):
        asked.append(config["INFERENCE_PRECISION_HINT"])
        return compile_model(core, model, device, config)

    def says(compiled, name):
        if name == "INFERENCE_PRECISION_HINT":
            return getattr(ov.Type, asked[-1])
        return get_property(compiled, name)

    monkeypatch.setattr(ov.Core, "compile_model", compiles)
    monkeypatch.setattr(ov.CompiledModel, "get_property", says)


def plan_of(model, folder, backend="auto", precision="fp32", **fields) -> BuildPlan:
    """As `fovea build --backend ... --precision ...` makes it."""
    possible = choices(backend, precision)
    first, its_precision = possible[0]
    return BuildPlan(
        model, "m", folder / "r", first, precision=its_precision,
        choices=possible if len(possible) > 1 else (), **fields,
    )  # fmt: skip


def by_name(card: EngineCard):
    return {(one.backend, one.precision): one for one in card.candidates}


def kept(card: EngineCard):
    [one] = [one for one in card.candidates if one.kept]
    assert (one.backend, one.precision) == (card.backend, card.precision)
    assert one.quality == card.agreement.quality
    return one.backend, one.precision


@pytest.fixture
def rates(monkeypatch):
    """Replaces the clock: images/s alone and in parallel of the candidates, in their order."""

    def give(*found: tuple[float, float]) -> None:
        monkeypatch.setattr(
            "fovea_engines.build.choose.time_engines",
            lambda engines, *_, **__: [
                Rates((alone,) * 5, (parallel,) * 5) for alone, parallel in found[: len(engines)]
            ],
        )

    return give


def test_auto_times_every_runtime_of_a_cpu(tiny_model, tmp_path):
    progress = Progress()
    card = build(plan_of(tiny_model, tmp_path), progress)
    figures = by_name(card)
    assert list(figures) == [("openvino", "fp32"), ("onnxruntime", "fp32")]
    for one in figures.values():
        assert one.problem is None
        assert one.alone_ms > 0
        assert one.images_per_s > 0
    kept(card)
    assert card.goal == "throughput"
    assert "speed" in card.build_seconds
    folder = tmp_path / "r" / "m" / "1"
    assert {path.name for path in folder.iterdir()} == {"card.json", "card.md", *card.files}
    assert f"| {card.backend} | fp32 |" in (folder / REPORT_FILE).read_text()
    with Engine.open(folder) as engine:
        assert engine.card == card


def test_what_is_done_and_decided_is_told(tiny_model, tmp_path, rates, fovea):
    rates((1, 8), (1, 10), (1, 1))
    code, out, err = fovea("build", tiny_model, "--precision", "auto")
    assert code == 0, err
    assert err.count("compile openvino in fp32") == err.count("compile onnxruntime in fp32") == 1
    assert "chose onnxruntime in fp32 for throughput: 1.25 times as fast as openvino in fp32" in err
    assert err.count("INT8 needs --calibration") == out.count("INT8 needs --calibration") == 1
    assert "openvino int8, onnxruntime int8: INT8 needs" in out
    rates((1, 8), (1, 8))
    err = fovea("build", tiny_model, "--name", "other")[2]
    assert "chose openvino in fp32 for throughput: onnxruntime in fp32 was faster in fewer" in err
    rates((1, 8), (3, 8))
    err = " ".join(fovea("build", tiny_model, "--name", "third")[2].split())
    assert (
        "chose onnxruntime in fp32 for throughput: within noise as fast as openvino in fp32" in err
    )
    assert "and 3.00 times as fast with a single image" in err
    assert "--hint latency" not in err


@pytest.mark.parametrize(
    ("alone", "goal", "hinted"),
    [(16, "throughput", True), (11, "throughput", False), (16, "latency", False)],
)
def test_a_loser_that_is_faster_alone_is_named(tiny_model, rates, fovea, alone, goal, hinted):
    rates((10, 12), (alone, 10))
    code, _, err = fovea("build", tiny_model, "--hint", goal)
    assert code == 0, err
    hint = "onnxruntime in fp32 is 1.60 times as fast for single images"
    assert (hint in " ".join(err.split())) == hinted
    assert ("--hint latency" in err) == hinted


def test_the_goal_decides_and_what_was_measured_is_not_measured_again(tiny_model, tmp_path, rates):
    rates((9, 1), (1, 9))
    plan = plan_of(tiny_model, tmp_path)
    first = build(plan)
    assert (kept(first), first.goal) == (("onnxruntime", "fp32"), "throughput")
    rates((1, 9), (9, 1))
    assert build(plan).backend == "onnxruntime"
    assert ModelRepository(tmp_path / "r").versions("m") == (1,)
    for_latency = build(replace(plan, goal="latency"))
    assert (kept(for_latency), for_latency.goal) == (("onnxruntime", "fp32"), "latency")
    assert ModelRepository(tmp_path / "r").versions("m") == (1, 2)


def test_a_named_backend_is_not_timed(tiny_model, tmp_path):
    card = build(plan_of(tiny_model, tmp_path, "onnxruntime"))
    assert (card.candidates, card.goal) == ((), None)
    assert "speed" not in card.build_seconds


def test_a_runtime_that_cannot_open_the_model_is_left_out(tmp_path, fovea):
    """OpenVINO 2026.4 has no determinants."""
    nodes = [helper.make_node("Det", ["images"], ["out"])]
    image, out = ("images", [1, 3, 32, 32]), ("out", [1, 3])
    model = save(tmp_path / "det.onnx", nodes, [image], [out])
    code, _, err = fovea("build", model, "--backend", "openvino")
    assert code == 1
    assert "openvino cannot compile this model: OpenVINO cannot" in err
    assert "--backend onnxruntime can" in " ".join(err.split())
    code, out, err = fovea("build", model, "--name", "seg", "--json")
    assert code == 0, err
    card = EngineCard.from_json(json.loads(out)["card"])
    assert kept(card) == ("onnxruntime", "fp32")
    left_out = by_name(card)["openvino", "fp32"]
    assert left_out.alone_ms is None
    assert left_out.problem.startswith("openvino cannot compile this model: OpenVINO cannot")
    assert f"openvino in fp32 is left out: {left_out.problem}" in err
    shown = fovea("inspect", "seg")[1]
    assert "left out" in shown
    assert "Det" in shown


def test_the_fastest_is_passed_over_when_it_computes_something_else(
    tiny_model, tmp_path, rates, monkeypatch
):
    right = OnnxRuntimeBackend.compile

    def wrong(backend, model, *given):
        """Compile a graph whose first weights are halved."""
        graph = onnx.load_model_from_string(model)
        weight = next(w for w in graph.graph.initializer if w.name.startswith("w"))
        halved = onnx.numpy_helper.to_array(weight) / 2
        weight.CopyFrom(onnx.numpy_helper.from_array(halved.astype(np.float32), weight.name))
        return right(backend, graph.SerializeToString(), *given)

    monkeypatch.setattr(OnnxRuntimeBackend, "compile", wrong)
    rates((1, 1), (9, 9))
    card = build(plan_of(tiny_model, tmp_path))
    assert kept(card) == ("openvino", "fp32")
    passed_over = by_name(card)["onnxruntime", "fp32"]
    assert passed_over.images_per_s == 9
    assert "px" in passed_over.problem


def test_every_precision_is_verified_and_the_fastest_kept(
    deep_detector, images, tmp_path, rates, monkeypatch
):
    pretend_cpu(monkeypatch, NO_VNNI)
    rates((9, 1), (2, 2), (1, 9), (3, 8))
    plan, notes = plan_of(deep_detector, tmp_path, precision="auto", calibration=images), Noting()
    card = build(plan, notes)
    assert kept(card) == ("openvino", "int8")
    assert any("1.12 times as fast as onnxruntime in int8" in note for note in notes.notes)
    figures = by_name(card)
    assert list(figures) == [
        ("openvino", "fp32"),
        ("onnxruntime", "fp32"),
        ("openvino", "bf16"),
        ("openvino", "int8"),
        ("onnxruntime", "int8"),
    ]
    # Of each precision the fastest backend is verified.
    assert figures["onnxruntime", "fp32"].quality > 0.99
    assert figures["openvino", "int8"].quality > 0.8
    assert figures["openvino", "fp32"].quality is figures["onnxruntime", "int8"].quality is None
    assert "needs a CPU with avx512_bf16 or amx_bf16" in figures["openvino", "bf16"].problem
    assert card.calibration.images == 8


def test_bfloat16_is_timed_and_verified_where_the_cpu_has_it(
    tiny_model, tmp_path, rates, monkeypatch
):
    pretend_bfloat16(monkeypatch)
    rates((1, 1), (2, 2), (9, 9))
    card = build(plan_of(tiny_model, tmp_path, precision="auto"))
    assert kept(card) == ("openvino", "bf16")
    assert card.cpu_features == ("avx512_bf16", "amx_bf16")
    assert by_name(card)["onnxruntime", "fp32"].quality > 0.99
    assert ("onnxruntime", "bf16") not in by_name(card)


def test_labels_decide_where_there_are_any(
    deep_detector, images, labels, tmp_path, rates, monkeypatch
):
    pretend_cpu(monkeypatch, NO_VNNI)
    rates((1, 1), (9, 9))
    fields = {"calibration": images, "data": labels, "images": images, "max_drop": 1.0}
    card = build(plan_of(deep_detector, tmp_path, "onnxruntime", "auto", **fields))
    assert kept(card) == ("onnxruntime", "int8")
    for precision in ("fp32", "int8"):
        assert by_name(card)["onnxruntime", precision].accuracy is not None


def test_a_precision_that_disagrees_is_left_out_however_fast(
    network, images, tmp_path, rates, monkeypatch
):
    pretend_cpu(monkeypatch, NO_VNNI)
    spoilt = onnx.load(network)
    plant_outlier(spoilt, 1, 1000)
    onnx.save(spoilt, tmp_path / "spoilt.onnx")
    rates((1, 1), (9, 9))
    fields = {"calibration": images, "keep_float": ()}
    card = build(plan_of(tmp_path / "spoilt.onnx", tmp_path, "onnxruntime", "auto", **fields))
    assert kept(card) == ("onnxruntime", "fp32")
    assert "INT8 has an agreement" in by_name(card)["onnxruntime", "int8"].problem
    assert card.calibration is None
    # Where there is nothing else, the report of the refused build has the reasons.
    with pytest.raises(Disagreement, match="INT8"):
        build(plan_of(tmp_path / "spoilt.onnx", tmp_path, precision="int8", **fields))
    refused = EngineCard.read(tmp_path / "r" / "m" / FAILED_FOLDER / "card.json")
    assert [one.kept for one in refused.candidates] == [False, False]
    assert all("INT8 has an agreement" in one.problem for one in refused.candidates)


def test_a_model_that_was_quantised_in_training_has_one_precision(deep_detector, images, tmp_path):
    plan = BuildPlan(deep_detector, "m", tmp_path / "r", calibration=images)
    prepared = prepare(plan, Progress())
    rows = Images(image_files(images, 2), prepared.preprocess, "")
    found = calibrate(prepared.graph, rows, Origin("", "", "", "minmax"), Progress())
    trained = quantised_in_training(prepared.graph, found, {"layer.1", "layer.2"})
    onnx.save(trained, tmp_path / "trained.onnx")
    card = build(plan_of(tmp_path / "trained.onnx", tmp_path, precision="auto"))
    assert list(by_name(card)) == [("openvino", "int8"), ("onnxruntime", "int8")]
    kept(card)


def test_a_plan_names_its_first_choice(tiny_model, tmp_path):
    plan = plan_of(tiny_model, tmp_path, precision="auto")
    assert plan.choices[0] == (plan.backend, plan.precision) == ("openvino", "fp32")
    with pytest.raises(InvalidOption, match="bf16"):
        plan.choice("onnxruntime", "bf16")


def test_of_large_engines_two_are_open_at_a_time(tiny_model, tmp_path, monkeypatch):
    monkeypatch.setattr("fovea_engines.build.assemble._MAX_BYTES", 0)
    pretend_bfloat16(monkeypatch)
    opened = []

    class Counted(HeldEngines):
        def engine(self, folder, card):
            known, engine = folder in self._open, super().engine(folder, card)
            opened.append((known, len(self._open)))
            return engine

    monkeypatch.setattr("fovea_engines.build.choose.HeldEngines", Counted)
    card = build(plan_of(tiny_model, tmp_path, precision="auto"))
    assert kept(card) in by_name(card)
    assert sum(one.images_per_s is not None for one in card.candidates) == 3
    assert max(count for _, count in opened) == 2
    # One to time, one to verify, and the one that is kept: none in every round.
    assert 0 < sum(not known for known, _ in opened) <= 7
    with Engine.open(tmp_path / "r" / "m" / "1") as engine:
        assert engine.card == card


@pytest.fixture
def bfloat16(tiny_model, tmp_path, monkeypatch):
    """A folder with an engine that was verified on a stand-in for a CPU with bfloat16."""
    with monkeypatch.context() as there:
        pretend_bfloat16(there)
        card = build(BuildPlan(tiny_model, "m", tmp_path / "r", precision="bf16"))
        assert card.agreement.quality > 0.99
        assert card.cpu_features == ("avx512_bf16", "amx_bf16")
        assert card.checked_text.endswith(" with avx512_bf16, amx_bf16")
    return tmp_path / "r" / "m" / "1"


def test_bfloat16_needs_a_cpu_that_has_it(fovea, tiny_model, bfloat16, monkeypatch):
    """One of its instruction sets is enough."""
    pretend_cpu(monkeypatch, NO_VNNI)
    code, _, err = fovea("build", tiny_model, "--precision", "bf16")
    assert code == 2
    assert "needs a CPU with avx512_bf16 or amx_bf16" in err
    with pytest.raises(BackendUnavailable, match="avx512_bf16"):
        Engine.open(bfloat16)
    pretend_bfloat16(monkeypatch)
    pretend_cpu(monkeypatch, frozenset({"avx512_bf16"}))
    Engine.open(bfloat16).close()


def test_openvino_computes_in_bfloat16_or_the_build_is_refused(tiny_model, tmp_path, monkeypatch):
    plan = BuildPlan(tiny_model, "m", tmp_path / "r", precision="bf16")
    if sets := sets_for("bf16"):
        card = build(plan)
        assert card.cpu_features == sets
        with Engine.open(tmp_path / "r" / "m" / "1") as engine:
            assert engine.card == card
    else:
        pretend_cpu(monkeypatch, BFLOAT16)
        with pytest.raises(BackendUnavailable):
            build(plan)


@pytest.mark.parametrize(
    ("precision", "bits", "flags", "says"),
    [
        ("int8", 8, NO_VNNI, "weights of 8 bits and was verified on a CPU with avx_vnni;"),
        ("int8", 8, {"avx512_vnni"}, None),
        ("int8", 7, NO_VNNI, None),
        ("fp32", 8, NO_VNNI, None),
        ("fp16", 8, NO_VNNI, None),
    ],
)
def test_int8_is_bound_to_its_cpu_in_the_same_way(card, monkeypatch, precision, bits, flags, says):
    features = ("avx_vnni",) if precision == "int8" and bits == 8 else ()
    moved = EngineCard.from_json(
        replace(card, precision=precision, weight_bits=bits, cpu_features=features).to_json()
    )
    pretend_cpu(monkeypatch, frozenset(flags))
    assert (moved.cpu_mismatch is None) == (says is None)
    assert says is None or says in moved.cpu_mismatch
