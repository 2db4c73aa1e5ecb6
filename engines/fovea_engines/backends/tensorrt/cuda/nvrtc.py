"""Compiles CUDA C++ with NVRTC, on any machine: it needs neither GPU nor driver."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from fovea_engines.backends.installing import install_extra
from fovea_preprocess.errors import BackendUnavailable, BuildError


def compile_cuda(source: str, name: str, target: str, options: Sequence[str] = ()) -> bytes:
    """Compile one source file without includes to PTX or cubin.

    Args:
        source: CUDA C++.
        name: file name in the compiler's messages.
        target: as in nvcc: "compute_75" gives PTX, for GPUs of that compute capability or a newer
            one; "sm_90" gives a cubin, for exactly that one.
        options: further compiler options.

    Raises:
        BackendUnavailable: NVRTC is not installed.
        BuildError: the source does not compile; the message has the compiler's log.
    """
    nvrtc = _nvrtc()
    program = _checked(nvrtc, nvrtc.nvrtcCreateProgram(source.encode(), name.encode(), 0, [], []))
    try:
        wanted = [option.encode() for option in (f"--gpu-architecture={target}", *options)]
        (result,) = nvrtc.nvrtcCompileProgram(program, len(wanted), wanted)
        if result != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            log = _text(nvrtc, nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program)
            reason = log.decode(errors="replace").strip("\0\n")
            raise BuildError(
                f"{name} does not compile for {target}: {reason}; a target that this NVRTC does "
                "not know needs another release of nvidia-cuda-nvrtc"
            )
        if target.startswith("sm_"):
            return _text(nvrtc, nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program)
        return _text(nvrtc, nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX, program)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _nvrtc() -> Any:
    try:
        nvrtc = import_module("cuda.bindings.nvrtc")
        # The library itself is only loaded at the first call.
        nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError) as error:
        raise BackendUnavailable(
            f"CUDA kernels cannot be compiled here ({error}): {install_extra('tensorrt')}"
        ) from error
    return nvrtc


def _text(nvrtc: Any, size_of: Any, read: Any, program: Any) -> bytes:
    size = _checked(nvrtc, size_of(program))
    room = bytearray(size)
    _checked(nvrtc, read(program, room))
    return bytes(room)


def _checked(nvrtc: Any, answer: tuple[Any, ...]) -> Any:
    result, *values = answer
    if result != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise BuildError(f"NVRTC failed ({result.name}); reinstall nvidia-cuda-nvrtc")
    return values[0] if values else None
