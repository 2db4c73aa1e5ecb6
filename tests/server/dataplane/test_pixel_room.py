"""The order in which large images are decoded, and how many at once."""

import asyncio

import pytest

from fovea_preprocess.errors import QueueFull
from fovea_server.byte_budget import ByteBudget
from fovea_server.dataplane.pixel_room import LARGE, SMALL, PixelRoom

MEDIUM, HUGE = SMALL + 1, LARGE + 1


class Visits:
    """Images that come, are decoded until they are told to leave, and the order of it."""

    def __init__(self, limit: int = 1 << 40, cores: int = 2, most_waiting: int = 100) -> None:
        self.budget = ByteBudget(limit)
        self.room = PixelRoom(
            self.budget, cores=cores, most_pixels=64_000_000, most_waiting=most_waiting
        )
        self.inside: list[str] = []
        self.seen: list[str] = []
        self._over: dict[str, asyncio.Event] = {}

    async def come(self, name: str, size: int, client: str = "one") -> asyncio.Task[None]:
        self._over[name] = asyncio.Event()

        async def visit() -> None:
            async with self.room.decoding(size, client):
                self.inside.append(name)
                self.seen.append(name)
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


def test_few_large_images_are_decoded_at_once_and_never_by_all_threads():
    async def scenario() -> None:
        visits = Visits(cores=4)
        tasks = [await visits.come(f"huge {n}", HUGE) for n in range(5)]
        assert visits.inside == ["huge 0", "huge 1"]
        tasks += [await visits.come(f"medium {n}", MEDIUM) for n in range(5)]
        assert len(visits.inside) == 2, "one client's images keep their order"
        tasks.append(await visits.come("other", MEDIUM, "two"))
        assert visits.inside[2:] == ["other"]
        await visits.empty()
        await asyncio.gather(*tasks)
        assert len(visits.seen) == 11

    asyncio.run(scenario())


def test_clients_take_turns():
    async def scenario() -> None:
        visits = Visits(cores=1)
        tasks = [await visits.come(f"a{n}", MEDIUM, "a") for n in range(6)]
        tasks += [await visits.come(f"b{n}", MEDIUM, "b") for n in range(3)]
        await visits.empty()
        await asyncio.gather(*tasks)
        assert visits.seen[:2] == ["a0", "a1"], "they were alone"
        assert visits.seen[2:8:2] in (["a2", "a3", "a4"], ["b0", "b1", "b2"])
        assert sorted(visits.seen[2:8:2] + visits.seen[3:8:2]) == sorted(
            ["a2", "a3", "a4", "b0", "b1", "b2"]
        )

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
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(scenario())


def test_too_many_are_refused_with_a_time_to_come_back():
    async def scenario() -> None:
        visits = Visits(cores=2, most_waiting=2)
        tasks = [await visits.come(f"h{n}", HUGE) for n in range(3)]
        refused = await visits.come("late", HUGE)
        with pytest.raises(QueueFull, match="wait to be decoded") as error:
            await refused
        assert error.value.retry_after_s > 0
        await visits.empty()
        await asyncio.gather(*tasks)

    asyncio.run(scenario())
