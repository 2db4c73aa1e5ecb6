"""Parses and checks compute capabilities, which TensorRT-RTX builds for ahead of time."""

from __future__ import annotations

from collections.abc import Sequence

from fovea_engines.backends.tensorrt.runtime import Runtime
from fovea_engines.device import gpu_here
from fovea_preprocess.errors import InvalidOption

_H100 = {"90": "; for an H100 or H200 take --backend tensorrt on a machine that has one"}


def parse_capabilities(text: str) -> tuple[str, ...]:
    """Parse compute capabilities such as "80,89" or "8.0,8.9", without duplicates."""
    names = (part.strip().lower().removeprefix("sm").lstrip("_") for part in text.split(","))
    return tuple(dict.fromkeys(name.replace(".", "") for name in names))


def check_capabilities(capabilities: Sequence[str], runtime: Runtime) -> None:
    """Check that TensorRT can build for these; for this machine's GPU if there are none.

    Raises:
        InvalidOption: it cannot; the message lists the supported ones.
    """
    known = runtime.compute_capabilities
    if not known:
        if capabilities:
            raise InvalidOption(
                f"TensorRT {runtime.version} builds for the GPU that is here: leave "
                "--compute-capability out, or build with --backend tensorrt-rtx"
            )
        return
    if not capabilities and gpu_here() is None:
        raise InvalidOption(
            "there is no GPU here to build for: say for which with --compute-capability, of "
            f"{', '.join(known)}, e.g. 80,89"
        )
    for capability in capabilities:
        if capability not in known:
            raise InvalidOption(
                f"TensorRT-RTX {runtime.version} does not build for compute capability "
                f"{capability!r}: it does for {', '.join(known)}" + _H100.get(capability, "")
            )
