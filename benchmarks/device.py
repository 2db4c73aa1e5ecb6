"""Measures how busy the scheduler keeps a device, with a stand-in that takes 1 ms for an image.

    python benchmarks/device.py [--decoders 1 2 4] [--size 64 640] [--ms 1] [--seconds 5]

The stand-in has batches of 8 and two slots: one batch is copied while another computes, and a copy
takes a tenth of the time for an image. It computes nothing, and the calling thread sleeps, as one
that waits for a GPU does. So this measures the scheduler, decoding and the heads on the CPU:
images/s, the share of time in which the device computed, and CPU time, by the number of threads
that decode. A device of 0.1 ms waits for the process, and shows how much one can carry.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import uvloop
from numpy.typing import NDArray
from overhead import image, network

from fovea_engines.build.build import build
from fovea_engines.build.plan import BuildPlan
from fovea_engines.engine import Engine
from fovea_engines.repository.model_config import ModelConfig
from fovea_engines.results.options import PredictOptions
from fovea_engines.session import Array, Session
from fovea_preprocess.letterbox import LetterboxMap
from fovea_preprocess.preprocessor import PlacedImage, Placer
from fovea_preprocess.spec import PreprocessSpec
from fovea_server.models.config.config import complete_config
from fovea_server.models.opening import images_of
from fovea_server.observability.model_statistics import ModelStatistics
from fovea_server.scheduling.make import make_scheduler
from fovea_server.settings import Settings
from fovea_server.tensors.messages import ImageRequest, ImageResult

COPY, ROWS = 0.1, 8
CLIENTS = 16


class StandInDevice:
    """A session that takes images, and whose device is a clock."""

    offloads, steady, concurrency, max_batch = True, False, 2, ROWS

    def __init__(self, session: Session, spec: PreprocessSpec, image_s: float) -> None:
        self._image_s = image_s
        self.inputs, self.outputs = session.inputs, session.outputs
        self.busy_s = 0.0
        self._place = Placer(spec, 1 << 30)
        self._streams = threading.Lock()
        self._copied_at = self._done_at = 0.0
        zeros = np.zeros((1, *session.inputs[0].shape[1:]), np.float32)
        self._row = session.infer({session.inputs[0].name: zeros})

    def place(self, pixels: NDArray[np.uint8]) -> tuple[PlacedImage, LetterboxMap]:
        """Prepare an image."""
        return self._place(pixels)

    def infer_images(self, images: Sequence[PlacedImage]) -> dict[str, Array]:
        """Run one batch."""
        return self._run(len(images))

    def infer(self, feeds: Mapping[str, Array], *, alone: bool = True) -> dict[str, Array]:
        """Run rows, in the same time."""
        return self._run(len(next(iter(feeds.values()))))

    def _run(self, count: int) -> dict[str, Array]:
        with self._streams:
            # As in the streams of a GPU: what is queued begins without the CPU.
            self._copied_at = max(time.perf_counter(), self._copied_at)
            self._copied_at += COPY * self._image_s * count
            self._done_at = max(self._copied_at, self._done_at) + self._image_s * count
            self.busy_s += self._image_s * count
            done_at = self._done_at
        time.sleep(max(0.0, done_at - time.perf_counter()))
        return {name: np.repeat(row, count, 0) for name, row in self._row.items()}

    def close(self) -> None:
        """Nothing is held."""


async def load(
    engine: Engine, device: StandInDevice, body: bytes, decoders: int, seconds: float
) -> tuple[float, float, float]:
    """Images/s, the share of time in which the device computed, and CPU ms an image."""
    config = complete_config(ModelConfig(name="nothing"), engine)
    scheduler = make_scheduler(
        version=1,
        config=config,
        session=device,
        images=images_of(engine, config, Settings()),
        max_queue=256,
        decoders=decoders,
        statistics=ModelStatistics(),
        cache=None,
        find=lambda name, version: scheduler,
    )
    answered = 0

    async def client(until: float) -> None:
        nonlocal answered
        while time.perf_counter() < until:
            [answer] = await scheduler.predict(ImageRequest([body], PredictOptions()))
            assert isinstance(answer, ImageResult), answer
            answered += 1

    async def burst(length: float) -> float:
        began = time.perf_counter()
        await asyncio.gather(*[client(began + length) for _ in range(CLIENTS)])
        return time.perf_counter() - began

    await burst(0.5)
    answered, device.busy_s, cpu_s = 0, 0.0, time.process_time()
    wall = await burst(seconds)
    cpu_s = time.process_time() - cpu_s
    await asyncio.to_thread(scheduler.close, 5)
    return answered / wall, device.busy_s / wall, 1e3 * cpu_s / answered


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--decoders", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--size", type=int, nargs="+", default=[64, 640], help="side of a JPEG")
    parser.add_argument("--ms", type=float, default=1.0, help="that the device takes for an image")
    parser.add_argument("--seconds", type=float, default=5.0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "nothing.onnx"
        onnx.save(network(), source)
        build(BuildPlan(source, "nothing", Path(folder), "onnxruntime"))
        with Engine.open(Path(folder) / "nothing" / "1") as engine:
            assert engine.preprocessor is not None
            session = engine.session
            device = StandInDevice(session, engine.preprocessor.spec, arguments.ms / 1e3)
            engine.session = engine.images = device
            for size in arguments.size:
                for decoders in arguments.decoders:
                    rate, busy, cpu_ms = uvloop.run(
                        load(engine, device, image(size), decoders, arguments.seconds)
                    )
                    print(
                        f"JPEG of {size:>3} px, {decoders} decoding threads: {rate:6.0f} images/s, "
                        f"device busy {busy:.1%}, {cpu_ms:.2f} ms CPU"
                    )
            session.close()


if __name__ == "__main__":
    main()
