"""The order in which large images are decoded, and how many at once."""

import asyncio
import io
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import pytest
from PIL import Image

from fovea_preprocess.errors import LoadFailed
from fovea_server.app import build_app
from fovea_server.byte_budget import ByteBudget
from fovea_server.dataplane.decode_limiter import LARGE, SMALL, DecodeLimiter
from fovea_server.metrics.listener import MetricsServer
from fovea_server.settings import ModelControlMode, Settings

MEDIUM, HUGE = SMALL + 1, LARGE + 1


class Visits:
    """Images that come, are decoded until they are told to leave, and the order of it."""

    def __init__(self, limit: int = 1 << 40, cores: int = 2) -> None:
        self.budget = ByteBudget(limit)
        self.room = DecodeLimiter(self.budget, cores=cores, most_pixels=64_000_000)
        self.inside: list[str] = []
        self.seen: list[str] = []
        self._over: dict[str, asyncio.Event] = {}

    async def come(
        self, name: str, size: int, client: str = "one", left: int | None = None
    ) -> asyncio.Task[None]:
        """An image that comes; with `left` it is decoded at once, and so many bytes stay."""
        self._over[name] = asyncio.Event()
        place = self.room.place_for(client, size)
        assert place is not None

        async def visit() -> None:
            async with place:
                self.inside.append(name)
                self.seen.append(name)
                if left is not None:
                    place.end_decoding(left)
                await self._over[name].wait()
            self.inside.remove(name)

        task = asyncio.create_task(visit())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return task

    async def leave(self, name: str) -> None:
        self._over[name].set()
        for _ in range(6):
            await asyncio.sleep(0)

    async def empty(self) -> None:
        while self.inside:
            await self.leave(self.inside[0])
        assert self.budget.pixels == 0


def test_small_images_need_no_place():
    room = DecodeLimiter(ByteBudget(1), cores=1, most_pixels=64_000_000)
    assert room.place_for("one", SMALL) is None
    for side in (100, 3000):
        out = io.BytesIO()
        Image.new("RGB", (side, side)).save(out, "JPEG")
        place = room.place("one", out.getvalue())
        assert (place is None) == (side == 100)
    assert place is not None
    assert place.size == 3000**2 * 7


def test_few_large_images_are_decoded_at_once_and_never_by_all_threads():
    async def scenario() -> None:
        visits = Visits(cores=4)
        tasks = [await visits.come(f"huge {n}", HUGE) for n in range(5)]
        assert visits.inside == ["huge 0", "huge 1"]
        tasks += [await visits.come(f"medium {n}", MEDIUM) for n in range(5)]
        assert visits.inside[2:] == ["medium 0", "medium 1", "medium 2"]
        await visits.leave("huge 0")
        assert visits.inside[-1] == "medium 3", "medium ones have had fewer bytes"
        await visits.leave("medium 0")
        await visits.leave("medium 1")
        assert visits.inside[-1] == "huge 2", "large ones have their turn all the same"
        await visits.empty()
        await asyncio.gather(*tasks)
        assert len(visits.seen) == 10

    asyncio.run(scenario())


def test_a_photo_does_not_wait_for_all_larger_images_of_its_client():
    async def scenario() -> None:
        visits = Visits(limit=HUGE, cores=2)
        tasks = [await visits.come(f"huge {n}", HUGE) for n in range(10)]
        tasks.append(await visits.come("photo", MEDIUM))
        assert visits.inside == ["huge 0"], "there is memory for one"
        await visits.leave("huge 0")
        assert visits.seen[1] == "photo"
        await visits.empty()
        await asyncio.gather(*tasks)

    asyncio.run(scenario())


def test_clients_share_by_bytes():
    async def scenario() -> None:
        visits = Visits(limit=4 * MEDIUM, cores=1)
        first = [await visits.come("first", 4 * MEDIUM, "first")]
        waiting = [await visits.come(f"a{n}", 4 * MEDIUM, "a") for n in range(3)]
        waiting += [await visits.come(f"b{n}", 2 * MEDIUM, "b") for n in range(6)]
        while len(visits.seen) < 10:
            await visits.leave(visits.inside[0])
        order = visits.seen[1:]
        # While both wait, b has two images for each of a's, which are twice as large.
        for turns in (3, 6, 9):
            assert abs(2 * sum(name[0] == "a" for name in order[:turns]) - turns * 2 / 3) <= 2
        await visits.empty()
        await asyncio.gather(*first, *waiting)

    asyncio.run(scenario())


def test_what_is_held_otherwise_leaves_less_room_but_one_image_always_has_its_turn():
    async def scenario() -> None:
        visits = Visits(limit=3 * MEDIUM, cores=8)
        visits.budget.take(2 * MEDIUM)
        tasks = [await visits.come(f"m{n}", MEDIUM) for n in range(3)]
        assert visits.inside == ["m0"]
        visits.budget.give_back(2 * MEDIUM)
        tasks.append(await visits.come("m3", MEDIUM))
        assert visits.inside == ["m0", "m1", "m2"]
        await visits.empty()
        tasks.append(await visits.come("over", 9 * MEDIUM))
        assert visits.inside == ["over"], "alone it may exceed the limit"
        tasks.append(await visits.come("behind", MEDIUM))
        assert visits.inside == ["over"]
        visits.budget.take(MEDIUM)
        visits.budget.give_back(MEDIUM)
        await visits.empty()
        await asyncio.gather(*tasks)

    asyncio.run(scenario())


def test_what_is_left_of_decoded_images_counts_until_they_are_answered():
    async def scenario() -> None:
        visits = Visits(limit=3 * MEDIUM, cores=2)
        tasks = [await visits.come(f"m{n}", MEDIUM, left=MEDIUM // 2) for n in range(5)]
        assert len(visits.inside) == 5, "their turns are over"
        assert visits.budget.pixels == 5 * (MEDIUM // 2)
        tasks += [await visits.come(f"w{n}", MEDIUM, left=MEDIUM) for n in range(2)]
        assert len(visits.inside) == 5, "there is no room"
        await visits.leave("m0")
        assert visits.inside[-1] == "w0"
        await visits.empty()
        await asyncio.gather(*tasks)

    asyncio.run(scenario())


def test_one_that_is_given_up_leaves_its_place():
    async def scenario() -> None:
        visits = Visits(cores=2)
        tasks = [await visits.come(f"h{n}", HUGE) for n in range(3)]
        tasks[1].cancel()
        tasks[0].cancel()
        for _ in range(6):
            await asyncio.sleep(0)
        assert visits.seen == ["h0", "h2"]
        await visits.leave("h2")
        assert visits.budget.pixels == 0
        tasks = [await visits.come(f"i{n}", HUGE) for n in range(2)]
        await visits.leave("i0")
        tasks[1].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert visits.budget.pixels == 0

    asyncio.run(scenario())


def test_one_that_is_given_up_as_it_is_let_in_leaves_its_place():
    async def scenario() -> None:
        visits = Visits(cores=2)
        tasks = [await visits.come(f"h{n}", HUGE) for n in range(2)]
        visits._over["h0"].set()
        while visits.room._waiting:
            await asyncio.sleep(0)
        tasks[1].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert visits.seen == ["h0"]
        assert visits.budget.pixels == 0
        tasks = [await visits.come("next", HUGE)]
        assert visits.inside == ["next"]
        await visits.empty()

    asyncio.run(scenario())


def test_clients_that_are_gone_are_forgotten():
    async def scenario() -> None:
        visits = Visits(limit=HUGE, cores=1)
        tasks = [await visits.come(f"h{n}", HUGE) for n in range(2)]
        # The turn of the second is the present one, and the others' are over.
        await visits.leave("h0")
        tasks.append(await visits.come("h2", HUGE))
        for n in range(9_000):
            place = visits.room.place_for(f"client {n}", HUGE)
            assert place is not None
            passing = asyncio.create_task(place.__aenter__())
            await asyncio.sleep(0)
            passing.cancel()
            await asyncio.gather(passing, return_exceptions=True)
        assert len(visits.room._next) < 5_000
        await visits.leave("h1")
        assert visits.inside == ["h2"]
        await visits.empty()
        await asyncio.gather(*tasks)

    asyncio.run(scenario())


# Loads and scrapes have threads of their own, and wait for none that requests have taken.


@contextmanager
def all_threads_taken() -> Iterator[None]:
    """The running loop's own threads do something else."""
    over = threading.Event()
    with ThreadPoolExecutor(1) as threads:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(threads)
        loop.run_in_executor(None, over.wait)
        try:
            yield
        finally:
            over.set()


def test_models_are_loaded_and_unloaded(tmp_path):
    settings = Settings(model_repository=tmp_path, model_control_mode=ModelControlMode.EXPLICIT)
    models = build_app(settings).service.models

    async def ask() -> None:
        with all_threads_taken():
            await models.unload("nobody")
            with pytest.raises(LoadFailed):
                await models.load("nobody")

    asyncio.run(asyncio.wait_for(ask(), 30))


def test_metrics_are_told(tmp_path):
    settings = Settings(model_repository=tmp_path, metrics_port=0)
    server = MetricsServer(build_app(settings).service)

    async def ask() -> httpx.Response:
        await server.start()
        with all_threads_taken():
            async with httpx.AsyncClient() as client:
                answer = await client.get(f"http://127.0.0.1:{server.port}/metrics")
            await server.stop(5)
        return answer

    answer = asyncio.run(asyncio.wait_for(ask(), 30))
    assert "nv_inference_request_success" in answer.text
