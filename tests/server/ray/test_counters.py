"""Counters of several replicas are added."""

import pytest

from fovea_server.ray.metrics import add_documents

pytestmark = pytest.mark.cluster


def version(number: str, count: int, latest: int, batches: dict[int, int]) -> dict[str, object]:
    return {
        "version": number,
        "last_inference": latest,
        "inference_stats": {"success": {"count": count, "ns": 10 * count}},
        "batch_stats": [{"batch_size": b, "count": n} for b, n in batches.items()],
    }


def test_numbers_are_added_and_names_stay():
    one = {"name": "m", "versions": [version("1", 2, 50, {1: 2})], "durations": {"+Inf": 2}}
    other = {
        "name": "m",
        "versions": [version("1", 3, 40, {1: 1, 4: 2}), version("2", 1, 60, {})],
        "durations": {"0.1": 1, "+Inf": 4},
    }
    assert add_documents([one, other]) == {
        "name": "m",
        "versions": [version("1", 5, 50, {1: 3, 4: 2}), version("2", 1, 60, {})],
        "durations": {"+Inf": 6, "0.1": 1},
    }
