"""What this machine computes on."""

from __future__ import annotations

import platform
from pathlib import Path

# Each brings instructions that add products of INT8 in 32 bits.
_SUMS_IN_32_BITS = {"avx_vnni", "avx512_vnni", "amx_int8"}


def processor_name() -> str:
    """The processor's model name, e.g. "Intel(R) Xeon(R) Processor @ 2.60GHz"."""
    names = _cpuinfo("model name", Path("/"))
    return next(iter(names), platform.processor() or platform.machine())


def cpu_flags(root: Path = Path("/")) -> set[str] | None:
    """Instruction sets by Linux's names; None where proc/cpuinfo has none (not Linux, not x86).

    Args:
        root: where /proc hangs.
    """
    flags = _cpuinfo("flags", root)
    return set(flags[0].split()) if flags else None


def int8_saturates(root: Path = Path("/")) -> bool:
    """True where OpenVINO and ONNX Runtime add two products of INT8 in 16 bits (vpmaddubsw).

    They do on x86-64 without VNNI and AMX, where 255 * 127 + 255 * 127 becomes 32,767. A processor
    of x86-64 that does not say what it has is taken for one of these.

    Args:
        root: where /proc hangs.
    """
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return False
    return _SUMS_IN_32_BITS.isdisjoint(cpu_flags(root) or ())


def _cpuinfo(key: str, root: Path) -> list[str]:
    try:
        lines = (root / "proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    pairs = (line.partition(":") for line in lines)
    return [value.strip() for name, _, value in pairs if name.strip() == key]
