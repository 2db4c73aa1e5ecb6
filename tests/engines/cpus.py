"""Stand-ins for CPUs that are not here."""

from collections.abc import Callable

import openvino as ov
import pytest

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
