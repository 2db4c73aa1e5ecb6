"""What a GPU gives beside the engine: copies, the letterbox kernel, overlap and CUDA graphs.

    python benchmarks/gpu.py [--rows 32] [--rounds 20] [--json]

Each figure stands beside its limit, measured in the same run: the letterbox beside a kernel that
only copies as many bytes, the gain of overlapping batches beside what it were if the longest step
hid the others, and a graph beside the launches that it replaces. Times are the best of the rounds.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import numpy as np

from fovea_engines.backends.tensorrt.cuda.driver import Device, open_device
from fovea_engines.backends.tensorrt.cuda.letterbox import (
    LetterboxKernel,
    compile_cuda,
    compile_letterbox,
    packed_size,
)
from fovea_engines.backends.tensorrt.cuda.resources import Kernel, Stream
from fovea_preprocess.errors import BackendUnavailable
from fovea_preprocess.letterbox import LetterboxMap, fit
from fovea_preprocess.preprocessor import PlacedImage
from fovea_preprocess.spec import PreprocessSpec

SPECS = {
    "uint8 NHWC": PreprocessSpec(640, 640, dtype="uint8", layout="NHWC"),
    "float16 NCHW": PreprocessSpec(640, 640, dtype="float16"),
    "float32 NCHW": PreprocessSpec(640, 640),
}
IMAGE = (1080, 1920, 3)
BATCHES = 24
CHAIN = 20
COPY = """
extern "C" __global__ void copy(const uint4 *from, uint4 *to, unsigned long long count) {
    const unsigned long long step = (unsigned long long)gridDim.x * blockDim.x;
    for (unsigned long long i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step)
        to[i] = from[i];
}
"""


class Slot:
    """A stream with all that one batch needs on its way through the letterbox."""

    def __init__(self, device: Device, compiled: bytes, spec: PreprocessSpec, rows: int) -> None:
        pixels = np.random.default_rng(0).integers(0, 256, IMAGE, np.uint8)
        image = PlacedImage(pixels, fit(spec, IMAGE[1], IMAGE[0]))
        self.device, self.rows = device, rows
        self.stream, self.kernel = device.stream(), LetterboxKernel(device, compiled, spec)
        self.staging = device.pinned(packed_size(rows, rows * pixels.nbytes))
        self.staged = device.alloc(self.staging.array.size)
        self.batch = device.alloc(
            rows * int(np.prod(spec.row_shape)) * np.dtype(spec.dtype).itemsize
        )
        self.result = device.pinned(self.batch.size)
        self.kernel.pack([image] * rows, rows, self.staging)
        self.copy_in()

    def copy_in(self) -> None:
        """Enqueue the copy of the images to the GPU."""
        self.device.copy_in(self.staged, self.staging, self.staged.size, self.stream)

    def letterbox(self) -> None:
        """Enqueue the kernel."""
        self.kernel(self.stream, self.staged, self.rows, self.batch)

    def copy_out(self) -> None:
        """Enqueue the copy of the batch to the host."""
        self.device.copy_out(self.result, self.batch, self.batch.size, self.stream)

    def close(self) -> None:
        """Give everything back."""
        self.stream.synchronize()
        taken = self.kernel, self.staging, self.staged, self.batch, self.result, self.stream
        for one in taken:
            one.close()


@contextmanager
def slots(device: Device, spec: PreprocessSpec, rows: int, count: int) -> Iterator[list[Slot]]:
    """So many slots, closed at the end."""
    image = compile_letterbox(spec)
    with ExitStack() as stack:
        made = [Slot(device, image, spec, rows) for _ in range(count)]
        for slot in made:
            stack.callback(slot.close)
        yield made


def best_ms(device: Device, stream: Stream, work: Callable[[], None], rounds: int) -> float:
    """Least time on the GPU of what `work` enqueues."""
    begin, end = device.event(), device.event()

    def once() -> float:
        begin.record(stream)
        work()
        end.record(stream)
        end.synchronize()
        return end.milliseconds_since(begin)

    best = min(once() for _ in range(rounds + 1))
    begin.close()
    end.close()
    return best


def least_bytes(box: LetterboxMap, batch_row: int) -> int:
    """Bytes that cross the memory bus for one image: the lines it is read from, and its row."""
    lines = min(box.source_height, 2 * box.scaled_height)
    return lines * box.source_width * 3 + batch_row


def copies_ms(device: Device, kernel: Kernel, size: int, rounds: int) -> float:
    """Time of a kernel that reads half of `size` bytes and writes the other half."""
    stream, source, target = device.stream(), device.alloc(size // 2), device.alloc(size // 2)
    arguments = np.uint64(source.address), np.uint64(target.address), np.uint64(size // 32)
    best = best_ms(
        device, stream, lambda: kernel(stream, (4096, 1, 1), (256, 1, 1), *arguments), rounds
    )
    for one in (source, target, stream):
        one.close()
    return best


def steps(device: Device, copy: Kernel, rows: int, rounds: int) -> dict[str, dict[str, float]]:
    """Copies, and the letterbox beside its limit, for every spec."""
    figures = {}
    for name, spec in SPECS.items():
        with slots(device, spec, rows, 1) as (slot,):
            copy_in = best_ms(device, slot.stream, slot.copy_in, rounds)
            kernel = best_ms(device, slot.stream, slot.letterbox, rounds)
            copy_out = best_ms(device, slot.stream, slot.copy_out, rounds)
            box = fit(spec, IMAGE[1], IMAGE[0])
            size = rows * least_bytes(box, slot.batch.size // rows)
            figures[name] = {
                "copy_in_gb_s": slot.staged.size / copy_in / 1e6,
                "copy_out_gb_s": slot.batch.size / copy_out / 1e6,
                "letterbox_ms": kernel,
                "letterbox_gb_s": size / kernel / 1e6,
                "letterbox_images_s": rows / kernel * 1e3,
                "of_memory_bound": copies_ms(device, copy, size, rounds) / kernel,
                "overlap_gain_limit": (copy_in + kernel + copy_out)
                / max(copy_in, kernel, copy_out),
            }
    return figures


def overlap(device: Device, rows: int, rounds: int) -> dict[str, float]:
    """Images a second in, letterboxed to float32 NCHW, and out, by one slot, two and three."""
    figures = {}
    for count in (1, 2, 3):
        with slots(device, SPECS["float32 NCHW"], rows, count) as made:

            def run(made: list[Slot] = made) -> float:
                start = time.perf_counter()
                for number in range(BATCHES):
                    slot = made[number % len(made)]
                    slot.copy_in()
                    slot.letterbox()
                    slot.copy_out()
                for slot in made:
                    slot.stream.synchronize()
                return time.perf_counter() - start

            best = min(run() for _ in range(max(3, rounds // 5)))
            figures[f"images_s_{count}_slots"] = BATCHES * rows / best
    for count in (2, 3):
        gain = figures[f"images_s_{count}_slots"] / figures["images_s_1_slots"]
        figures[f"gain_{count}_slots"] = gain
    return figures


def launches(device: Device, copy: Kernel, rounds: int) -> dict[str, float]:
    """Microseconds of a chain of small kernels, launched one by one and as a graph."""
    stream, memory = device.stream(), device.alloc(2048)
    arguments = np.uint64(memory.address), np.uint64(memory.address + 1024), np.uint64(64)

    def chain() -> None:
        for _ in range(CHAIN):
            copy(stream, (1, 1, 1), (64, 1, 1), *arguments)

    with device.capture(stream) as capture:
        chain()
    graph = capture.graph()

    def times(work: Callable[[], None]) -> tuple[float, float]:
        start = time.perf_counter()
        work()
        enqueued = time.perf_counter() - start
        stream.synchronize()
        return enqueued * 1e6, (time.perf_counter() - start) * 1e6

    figures = {}
    for name, work in {"plain": chain, "graph": lambda: graph.launch(stream)}.items():
        enqueued, done = zip(*(times(work) for _ in range(10 * rounds)), strict=True)
        figures |= {f"{name}_enqueue_us": min(enqueued), f"{name}_done_us": min(done)}
    for one in (graph, memory, stream):
        one.close()
    return figures | {"gain": figures["plain_done_us"] / figures["graph_done_us"]}


def report(device: Device, rows: int, rounds: int) -> dict[str, object]:
    """Every figure."""
    with device.current():
        copy = device.kernel(compile_cuda(COPY, "copy.cu", "compute_75"), "copy")
        figures: dict[str, object] = {
            "gpu": device.name,
            "capability": ".".join(map(str, device.capability)),
            "rows": rows,
            "image": IMAGE,
            "steps": steps(device, copy, rows, rounds),
            "overlap": overlap(device, rows, rounds),
            f"launches_{CHAIN}": launches(device, copy, rounds),
        }
        copy.close()
    return figures


def show(figures: dict[str, object], indent: str = "") -> None:
    """The figures for people."""
    for name, value in figures.items():
        if isinstance(value, dict):
            print(f"{indent}{name}")
            show(value, indent + "    ")
        else:
            text = f"{value:,.2f}" if isinstance(value, float) else str(value)
            print(f"{indent}{name:24}{text:>20}")


def main() -> None:
    """Measures everything and prints it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=32, help="images in a batch")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    try:
        with open_device() as device:
            figures = report(device, given.rows, given.rounds)
    except BackendUnavailable as error:
        sys.exit(str(error))
    if given.json:
        print(json.dumps(figures, indent=1))
    else:
        show(figures)


if __name__ == "__main__":
    main()
