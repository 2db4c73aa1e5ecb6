"""Measures how busy the scheduler keeps a device, with a stand-in that takes 1 ms for an image.

    python benchmarks/device.py [--decoders 1 2 4] [--size 64 640] [--seconds 5]

The stand-in has batches of 8 and two slots: one batch is copied while another computes, and a copy
takes a tenth of a millisecond for an image. It computes nothing, and the calling thread sleeps, as
one that waits for a GPU does. So this measures the scheduler, decoding and the heads on the CPU:
images/s and the share of time in which the device computed, by the number of threads that decode.
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
from fovea_engines.detect.options import PredictOptions
from fovea_engines.engine import Engine
from fovea_engines.repository.model_config import ModelConfig
from fovea_engines.session import Array, Session
from fovea_preprocess.letterbox import LetterboxMap
from fovea_preprocess.preprocessor import PlacedImage, Placer
from fovea_preprocess.spec import PreprocessSpec
from fovea_server.models.config.config import complete
from fovea_server.models.opening import images_of
from fovea_server.scheduling.make import make_scheduler
from fovea_server.settings import Settings
from fovea_server.statistics.model import ModelStatistics
from fovea_server.tensors.image_messages import ImageRequest, ImageResult

IMAGE_S, COPY_S, ROWS = 1e-3, 1e-4, 8
CLIENTS = 16


class StandInDevice:
    """A session that takes images, and whose device is a clock."""

    offloads, steady, concurrency, max_batch = True, False, 2, ROWS

    def __init__(self, session: Session, spec: PreprocessSpec) -> None:
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
            self._copied_at = max(time.perf_counter(), self._copied_at) + COPY_S * count
            self._done_at = max(self._copied_at, self._done_at) + IMAGE_S * count
            self.busy_s += IMAGE_S * count
            done_at = self._done_at
        time.sleep(max(0.0, done_at - time.perf_counter()))
        return {name: np.repeat(row, count, 0) for name, row in self._row.items()}

    def close(self) -> None:
        """Nothing is held."""


async def load(
    engine: Engine, device: StandInDevice, body: bytes, decoders: int, seconds: float
) -> tuple[float, float]:
    """Images/s, and the share of time in which the device computed."""
    config = complete(ModelConfig(name="nothing"), engine)
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
    answered, device.busy_s = 0, 0.0
    wall = await burst(seconds)
    await asyncio.to_thread(scheduler.close, 5)
    return answered / wall, device.busy_s / wall


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--decoders", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--size", type=int, nargs="+", default=[64, 640], help="side of a JPEG")
    parser.add_argument("--seconds", type=float, default=5.0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "nothing.onnx"
        onnx.save(network(), source)
        build(BuildPlan(source, "nothing", Path(folder), "onnxruntime"))
        with Engine.open(Path(folder) / "nothing" / "1") as engine:
            assert engine.preprocessor is not None
            session = engine.session
            device = StandInDevice(session, engine.preprocessor.spec)
            engine.session = engine.images = device
            for size in arguments.size:
                for decoders in arguments.decoders:
                    rate, busy = uvloop.run(
                        load(engine, device, image(size), decoders, arguments.seconds)
                    )
                    print(
                        f"JPEG of {size:>3} px, {decoders} decoding threads: {rate:6.0f} images/s, "
                        f"device busy {busy:.1%}"
                    )
            session.close()


if __name__ == "__main__":
    main()
