"""bfloat16: refused where the CPU has it not, and where OpenVINO drops the hint."""

from dataclasses import replace

import pytest
from tests.engines.cpus import BFLOAT16, NO_VNNI, pretend_bfloat16, pretend_cpu

from fovea_engines.build.build import build
from fovea_engines.build.plan import BuildPlan
from fovea_engines.device import sets_for
from fovea_engines.engine import Engine
from fovea_engines.repository.card import EngineCard
from fovea_preprocess.errors import BackendUnavailable, InvalidOption

pytestmark = pytest.mark.slow


@pytest.fixture
def built(tiny_model, tmp_path, monkeypatch):
    """A folder with an engine that was verified on a stand-in for a CPU with bfloat16."""
    with monkeypatch.context() as there:
        pretend_bfloat16(there)
        card = build(BuildPlan(tiny_model, "m", tmp_path / "r", precision="bf16"))
        assert card.agreement.quality > 0.99
        assert card.checked_text.endswith(" with avx512_bf16, amx_bf16")
        with Engine.open(tmp_path / "r" / "m" / "1") as engine:
            assert engine.card.precision == "bf16"
    return tmp_path / "r" / "m" / "1"


def test_a_cpu_without_it_is_told_what_to_take(fovea, tiny_model, monkeypatch):
    pretend_cpu(monkeypatch, NO_VNNI)
    code, _, err = fovea("build", tiny_model, "--precision", "bf16")
    assert code == 2
    assert "--precision bf16 needs a CPU with avx512_bf16 or amx_bf16" in err
    assert "take --precision int8" in err


@pytest.mark.skipif(bool(sets_for("bf16")), reason="this CPU computes in bfloat16")
def test_openvino_may_not_drop_the_hint(tiny_model, tmp_path, monkeypatch):
    pretend_cpu(monkeypatch, BFLOAT16)
    with pytest.raises(BackendUnavailable, match="computes in f32 on this CPU, not in bf16"):
        build(BuildPlan(tiny_model, "m", tmp_path / "r", precision="bf16"))


@pytest.mark.skipif(not sets_for("bf16"), reason="this CPU does not compute in bfloat16")
def test_a_cpu_with_it_builds_and_serves(tiny_model, tmp_path):
    card = build(BuildPlan(tiny_model, "m", tmp_path / "r", precision="bf16"))
    assert card.cpu_features == sets_for("bf16")
    with Engine.open(tmp_path / "r" / "m" / "1") as engine:
        assert engine.card == card


def test_another_cpu_does_not_compute_it_in_float32(built, monkeypatch):
    pretend_cpu(monkeypatch, NO_VNNI)
    says = (
        r"computes in bfloat16 and was verified on a CPU with avx512_bf16, amx_bf16; this CPU .* "
        r"has neither avx512_bf16 nor amx_bf16, and would compute in float32: build it again with "
        r"`fovea build`"
    )
    with pytest.raises(BackendUnavailable, match=says):
        Engine.open(built)


def test_one_of_the_instruction_sets_is_enough(built, monkeypatch):
    pretend_bfloat16(monkeypatch)
    pretend_cpu(monkeypatch, frozenset({"avx512_bf16"}))
    Engine.open(built).close()


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


def test_bfloat16_is_not_for_a_float16_model(tiny_model, tmp_path, monkeypatch):
    pretend_bfloat16(monkeypatch)
    with pytest.raises(InvalidOption, match="is for --backend openvino"):
        BuildPlan(tiny_model, "m", tmp_path / "r", "onnxruntime", precision="bf16")
