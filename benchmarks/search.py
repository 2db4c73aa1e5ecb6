"""Measures how long an exact search takes, beside the product of NumPy that is the least of it.

    python benchmarks/search.py

Prints the medians, and the ratio of a search to the product alone, over interleaved rounds.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np

from fovea_server.search.index import VectorIndex

NUMBER, SIZES, ROUNDS, CALLS, MOST = 100_000, (128, 256, 512), 5, 20, 10


def milliseconds(work: Callable[[], object]) -> float:
    """Return the median time of a call."""
    times = []
    for _ in range(CALLS):
        began = time.perf_counter()
        work()
        times.append(1e3 * (time.perf_counter() - began))
    return statistics.median(times)


def main() -> None:
    """Measure all sizes."""
    random = np.random.default_rng(0)
    print(f"{NUMBER:,} vectors, the best {MOST}; medians of {ROUNDS} rounds of {CALLS} calls")
    for size in SIZES:
        vectors = random.normal(size=(NUMBER, size)).astype(np.float32)
        index = VectorIndex.of(vectors, [str(at) for at in range(NUMBER)])
        query = index.vectors[4711]
        assert index.nearest(query, MOST)[0].name == "4711"
        rounds = [
            (
                milliseconds(lambda: index.nearest(query, MOST)),  # noqa: B023
                milliseconds(lambda: index.vectors @ query),  # noqa: B023
            )
            for _ in range(ROUNDS)
        ]
        search, product = (statistics.median(each) for each in zip(*rounds, strict=True))
        ratio = statistics.median(one / other for one, other in rounds)
        print(f"{size} numbers: {search:.1f} ms, product alone {product:.1f} ms, x{ratio:.2f}")


if __name__ == "__main__":
    main()
