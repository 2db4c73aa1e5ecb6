"""Letterboxes images on the GPU, with a kernel that is stored as a file beside the engine.

The file is PTX. Its first line is a comment with the `PreprocessSpec` of the model's input, as
JSON.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from importlib import import_module, resources
from pathlib import Path
from typing import Any, Final

import numpy as np
from pydantic import TypeAdapter, ValidationError

from fovea_engines.backends.installing import install_extra
from fovea_engines.backends.tensorrt.cuda.driver import Device
from fovea_engines.backends.tensorrt.cuda.resources import DeviceMemory, PinnedMemory, Stream
from fovea_engines.progress import Progress
from fovea_engines.repository.files import write_file
from fovea_preprocess.errors import BackendUnavailable, BuildError, InferenceFailed, InvalidModel
from fovea_preprocess.letterbox import LetterboxMap
from fovea_preprocess.preprocessor import PlacedImage
from fovea_preprocess.spec import PreprocessSpec

LETTERBOX_FILE = "letterbox.ptx"

# Characters that start a comment in PTX.
_MARK = b"// "
_SPEC: Final = TypeAdapter(PreprocessSpec)

log = logging.getLogger(__name__)

# Memory layout of `struct Image` in letterbox.cu.
IMAGE = np.dtype(
    [
        ("pixels", np.int64),
        *((name, np.int64) for name in ("start_x", "start_y", "step_x", "step_y")),
        *((name, np.int32) for name in ("width", "height", "left", "top", "right", "bottom")),
        ("filtered", np.int32),
    ],
    align=True,
)
_ONE = 1 << 40
_BLOCK = (32, 8, 1)
_ELEMENTS = {"uint8": "unsigned char", "float16": "Half", "float32": "float", "int32": "int"}


def compile_cuda(source: str, name: str, target: str, options: Sequence[str] = ()) -> bytes:
    """Compile one CUDA source file without includes to PTX or a cubin.

    Args:
        source: CUDA C++ source code.
        name: file name that the compiler's messages show.
        target: target in nvcc's notation. "compute_75" returns PTX for GPUs with compute capability
            7.5 or newer. "sm_90" returns a cubin for GPUs with compute capability 9.0 only.
        options: further compiler options.

    Raises:
        BackendUnavailable: NVRTC is not installed.
        BuildError: the source does not compile. The message has the compiler's log.
    """
    nvrtc = _nvrtc()
    program = _check_answer(
        nvrtc, nvrtc.nvrtcCreateProgram(source.encode(), name.encode(), 0, [], [])
    )
    try:
        wanted = [option.encode() for option in (f"--gpu-architecture={target}", *options)]
        (result,) = nvrtc.nvrtcCompileProgram(program, len(wanted), wanted)
        if result != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            log = _text(nvrtc, nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program)
            reason = log.decode(errors="replace").strip("\0\n")
            raise BuildError(
                f"{name} does not compile for {target}: {reason}: if the target is newer than "
                "this NVRTC, install a newer nvidia-cuda-nvrtc"
            )
        if target.startswith("sm_"):
            return _text(nvrtc, nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program)
        return _text(nvrtc, nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX, program)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _nvrtc() -> Any:
    try:
        nvrtc = import_module("cuda.bindings.nvrtc")
        # This call loads NVRTC's shared library, which the import does not.
        nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError) as error:
        raise BackendUnavailable(
            f"CUDA kernels cannot be compiled here ({error}): {install_extra('tensorrt')}"
        ) from error
    return nvrtc


def _text(nvrtc: Any, size_of: Any, read: Any, program: Any) -> bytes:
    size = _check_answer(nvrtc, size_of(program))
    room = bytearray(size)
    _check_answer(nvrtc, read(program, room))
    return bytes(room)


def _check_answer(nvrtc: Any, answer: tuple[Any, ...]) -> Any:
    result, *values = answer
    if result != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise BuildError(f"NVRTC failed ({result.name}): reinstall nvidia-cuda-nvrtc")
    return values[0] if values else None


class LetterboxKernel:
    """Computes a batch of model inputs from images on the GPU.

    The result equals the result of `Preprocessor` on the host, with a difference of at most one
    grey level (of 255).

    The device must be current in the calling thread.
    """

    def __init__(self, device: Device, compiled: bytes, spec: PreprocessSpec) -> None:
        self.spec = spec
        self._kernel = device.kernel(compiled, "letterbox")

    def pack(self, images: Sequence[PlacedImage], rows: int, staging: PinnedMemory) -> int:
        """Write images and their positions in the model's input into one block of memory.

        The caller then copies the block to the GPU at once.

        `rows` is the batch size on the GPU. The kernel fills the rows after the last image with the
        padding colour.

        Returns:
            The size of the block in bytes, from the start of `staging`.

        Raises:
            ValueError: there are more images than rows, or the images do not fit into `staging`.
        """
        size = packed_size(rows, sum(image.pixels.nbytes for image in images))
        if len(images) > rows or size > staging.array.size:
            raise ValueError(
                f"{len(images)} images in a batch of {rows} need {size} bytes, but the buffer has "
                f"{staging.array.size}"
            )
        table = np.zeros(rows, IMAGE)
        start = table.nbytes
        for entry, image in zip(table, images, strict=False):
            pixels = image.pixels
            _describe(entry, start, image.map, self.spec.resample == "antialias")
            end = start + pixels.nbytes
            np.copyto(staging.array[start:end].reshape(pixels.shape), pixels)
            start = end
        staging.array[: table.nbytes] = table.view(np.uint8)
        return size

    def __call__(
        self, stream: Stream, staged: DeviceMemory, rows: int, batch: DeviceMemory
    ) -> None:
        """Add the kernel to a stream. It reads the block `staged` and writes the rows of `batch`.

        A CUDA graph may record the kernel, because all data that differs between batches is in
        `staged`.
        """
        grid = (-(-self.spec.width // _BLOCK[0]), -(-self.spec.height // _BLOCK[1]), rows)
        addresses = np.uint64(staged.address), np.uint64(batch.address)
        self._kernel(stream, grid, _BLOCK, *addresses)

    def close(self) -> None:
        """Release the kernel. A second call has no effect."""
        self._kernel.close()


def packed_size(rows: int, pixel_bytes: int) -> int:
    """Return the size in bytes of the block that `pack` writes.

    `pixel_bytes` is the total size of all images in bytes.
    """
    return rows * IMAGE.itemsize + pixel_bytes


def compile_letterbox(spec: PreprocessSpec, target: str = "compute_75") -> bytes:
    """Compile the letterbox kernel for a spec, by default to PTX for every supported GPU.

    The compiler needs no GPU.

    Raises:
        BackendUnavailable: NVRTC is not installed.
        BuildError: this version of NVRTC does not support the target.
    """
    return compile_cuda(source(), "letterbox.cu", target, definitions(spec))


def source() -> str:
    """Return the CUDA C++ source code of the letterbox kernel."""
    return (resources.files("fovea_engines.backends.tensorrt.cuda") / "letterbox.cu").read_text(
        encoding="utf-8"
    )


def definitions(spec: PreprocessSpec) -> list[str]:
    """Return the compiler options that define the constants of the kernel for a spec."""
    gains, offsets = [1.0] * 3, [0.0] * 3
    if not spec.whole:
        gains = [spec.scale / std for std in spec.std]
        offsets = [-mean / std for mean, std in zip(spec.mean, spec.std, strict=True)]
    values = {
        "HEIGHT": spec.height,
        "WIDTH": spec.width,
        "PAD": spec.pad,
        "NHWC": int(spec.layout == "NHWC"),
        "BGR": int(spec.channels == "BGR"),
        "ELEMENT": _ELEMENTS[spec.dtype],
        "GAINS": ",".join(f"{float(gain)!r}f" for gain in gains),
        "OFFSETS": ",".join(f"{float(offset)!r}f" for offset in offsets),
    }
    return [f"-D{name}={value}" for name, value in values.items()]


def _describe(entry: np.void, pixels: int, box: LetterboxMap, antialias: bool) -> None:
    rows, columns = box.visible
    x = _edges(box.source_width, box.scaled_width, box.offset_x, columns)
    y = _edges(box.source_height, box.scaled_height, box.offset_y, rows)
    entry["pixels"] = pixels
    entry["start_x"], entry["step_x"] = _positions(*x, columns)
    entry["start_y"], entry["step_y"] = _positions(*y, rows)
    entry["width"], entry["height"] = box.source_width, box.source_height
    entry["left"], entry["right"] = columns.start, columns.stop
    entry["top"], entry["bottom"] = rows.start, rows.stop
    # On the host, Pillow filters a crop when it resizes the crop. So the kernel must filter crops
    # too.
    entry["filtered"] = antialias or (_length(columns), _length(rows)) != (
        box.scaled_width,
        box.scaled_height,
    )


def _edges(source: int, scaled: int, offset: int, visible: slice) -> tuple[float, float]:
    """Return the start and end of the visible part of an image along one axis, in image pixels."""
    if _length(visible) == scaled:
        return 0.0, float(source)
    scale = scaled / source
    # Pillow stores the edges of a crop in single precision.
    return float(np.float32(-offset / scale)), float(
        np.float32((_length(visible) - offset) / scale)
    )


def _positions(begin: float, end: float, visible: slice) -> tuple[int, int]:
    """Return the image position of the input's first pixel, and the distance to the next one.

    Both are fixed-point numbers, in units of 2^-40 image pixels.
    """
    step = round((end - begin) * _ONE / _length(visible))
    return round(begin * _ONE) + (step * (1 - 2 * visible.start) - _ONE) // 2, step


def _length(span: slice) -> int:
    return int(span.stop - span.start)


def write_letterbox(folder: Path, spec: PreprocessSpec, progress: Progress) -> None:
    """Compile an engine's letterbox kernel into the engine's directory, for every supported GPU.

    If NVRTC is not installed, or the kernel does not support the resampling of `spec`, no file is
    written. Then the host letterboxes the images, and `progress` reports this.
    """
    floats = spec.resample == "linear-float" and not spec.whole
    if floats or spec.resample in ("area", "bicubic", "lanczos"):
        progress.note(
            f"the letterbox kernel does not support resample {spec.resample}, so the CPU "
            "letterboxes images"
        )
        return
    try:
        kernel = compile_letterbox(spec)
    except BackendUnavailable as error:
        progress.note(
            "the engine is built without a letterbox kernel, so the CPU letterboxes images: "
            f"{error}"
        )
        return
    write_file(folder / LETTERBOX_FILE, pack_kernel(kernel, spec))


def pack_kernel(kernel: bytes, spec: PreprocessSpec) -> bytes:
    """Return the content of the file for a compiled kernel and its spec."""
    return _MARK + _SPEC.dump_json(spec) + b"\n" + kernel


def open_letterbox(folder: Path, device: Device) -> LetterboxKernel | None:
    """Load the letterbox kernel from an engine's directory. The device must be current.

    Returns:
        The kernel. If there is no file, or the driver rejects the kernel, None. Then the host
        letterboxes the images.

    Raises:
        InvalidModel: the file is damaged.
    """
    file = folder / LETTERBOX_FILE
    if not file.is_file():
        return None
    line, _, kernel = file.read_bytes().partition(b"\n")
    try:
        spec = _SPEC.validate_json(line.removeprefix(_MARK), strict=True)
    except ValidationError as error:
        raise InvalidModel(f"{file} is damaged: build the engine again") from error
    try:
        return LetterboxKernel(device, kernel, spec)
    except InferenceFailed as error:
        # Log only the error's text. A log handler may keep an exception, and its frames would keep
        # the engine alive.
        log.warning("the CPU letterboxes images, because %s cannot be loaded: %s", file, str(error))
        return None
