"""Tensors and images of one model share its queue."""

import asyncio
from collections import Counter
from collections.abc import Callable

import numpy as np
from tests.server.scheduling.golden import wire
from tests.server.scheduling.served_images import SCENES, ServedImages

from fovea_server.tensors.messages import InferRequest

CLIENTS, ANSWERS = 16, 160


def test_each_kind_gets_its_share(serve_images: Callable[..., ServedImages]) -> None:
    served = serve_images("simple")
    spec = served.engine.session.inputs[0]
    tensor = wire(spec.name, np.zeros((1, *spec.shape[1:]), spec.numpy_dtype))
    answered: Counter[str] = Counter()

    async def client(kind: str) -> None:
        while answered.total() < ANSWERS:
            if kind == "image":
                await served.predict(SCENES[0])
            else:
                await served.scheduler.infer(InferRequest("simple", None, [tensor]))
            answered[kind] += 1

    async def ask() -> None:
        kinds = ["image", "tensor"] * CLIENTS
        await asyncio.gather(*[client(kind) for kind in kinds])

    asyncio.run(ask())

    # A machine that is half as fast would answer half of all.
    assert min(answered.values()) >= 0.4 * ANSWERS / 2
    assert served.scheduler.gate.inside == served.scheduler.pending == 0


def test_one_limit_holds_for_both(serve_images: Callable[..., ServedImages]) -> None:
    served = serve_images("simple", gated=True, max_queue=4)
    spec = served.engine.session.inputs[0]
    tensor = wire(spec.name, np.zeros((1, *spec.shape[1:]), spec.numpy_dtype))

    async def ask() -> list[object]:
        asked = [
            served.scheduler.infer(InferRequest("simple", None, [tensor]))
            if n % 2
            else served.predict(SCENES[0])
            for n in range(6)
        ]
        waiting = asyncio.gather(*asked, return_exceptions=True)
        await asyncio.sleep(0)
        served.gate.open.set()
        return await waiting

    kinds = [type(answer).__name__ for answer in asyncio.run(ask())]

    assert kinds == ["list", "InferResponse", "list", "InferResponse", "QueueFull", "QueueFull"]
