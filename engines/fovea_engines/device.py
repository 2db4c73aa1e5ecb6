"""What this machine computes on."""

from __future__ import annotations

import platform
from pathlib import Path


def processor_name() -> str:
    """The processor's model name, e.g. "Intel(R) Xeon(R) Processor @ 2.60GHz"."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())
