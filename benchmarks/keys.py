"""CPU time of checking a key, by how many there are; and whether the time tells of the bytes.

    python benchmarks/keys.py [--keys 10000] [--tries 100000] [--json FILE]

A file of keys is made, and `KeyAuthenticator.principal` is timed in this process. Wrong keys differ
from a right one, each from another, in their first or their last character; both kinds are tried in
random order. Welch's t of their times, and of two halves of one kind, say whether one could tell
them apart: above 4.5 is what tests of side channels call a leak (Goodwill et al., 2011).
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from fovea_engines.device import processor_name
from fovea_preprocess.errors import Unauthenticated
from fovea_server.auth.key import digest_of, new_token
from fovea_server.auth.key_authenticator import KeyAuthenticator

_ROUNDS = 20_000
# Behind the prefix fov_.
FIRST, LAST = 4, -1


def written(file: Path, tokens: list[str]) -> None:
    """Write a file with keys."""
    created = datetime.now(UTC).isoformat()
    keys = [
        {
            "name": f"key-{number}",
            "secrets": [{"sha256": digest_of(token)}],
            "scopes": ["predict"],
            "rate": "1000000/s",
            "quota": "1e9/day",
            "created": created,
        }
        for number, token in enumerate(tokens)
    ]
    file.write_text(json.dumps({"keys": keys}))


def asked(door: KeyAuthenticator, token: str) -> None:
    """Check a key as a request for one image does."""
    principal = door.principal(token)
    principal.check_scope("predict")
    principal.check_model("yolov8n")
    principal.charge(1)


def microseconds(check: Callable[[], object]) -> float:
    """Return the CPU time of a call: the median of five means."""
    means = []
    for _ in range(5):
        began = time.process_time()
        for _ in range(_ROUNDS):
            check()
        means.append((time.process_time() - began) / _ROUNDS)
    return 1e6 * statistics.median(means)


def welch(one: list[int], other: list[int]) -> float:
    """Return Welch's t of two samples, without their slowest tenths: those were interrupted."""
    kept = [sorted(times)[: len(times) * 9 // 10] for times in (one, other)]
    means = [statistics.fmean(times) for times in kept]
    spread = sum(statistics.variance(times) / len(times) for times in kept)
    return (means[0] - means[1]) / math.sqrt(spread)


def changed(token: str, at: int) -> str:
    """Return a key with another character at a place."""
    other = "B" if token[at] == "A" else "A"
    return token[:at] + other + (token[at + 1 :] if at >= 0 else "")


def timed(
    door: KeyAuthenticator, tokens: list[str], places: tuple[int, int], tries: int
) -> tuple[list[int], list[int]]:
    """Try keys that are wrong at one of two places, in random order; nanoseconds of each."""
    times: tuple[list[int], list[int]] = ([], [])
    for _ in range(tries):
        which = random.getrandbits(1)
        token = changed(random.choice(tokens), places[which])
        began = time.perf_counter_ns()
        with suppress(Unauthenticated):
            door.principal(token)
        times[which].append(time.perf_counter_ns() - began)
    return times


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--keys", type=int, default=10_000, help="most keys")
    parser.add_argument("--tries", type=int, default=100_000, help="wrong keys to try")
    parser.add_argument("--json", type=Path, help="write the figures")
    given = parser.parse_args()
    tokens = [new_token() for _ in range(given.keys)]
    costs, right = {}, tokens[-1]
    with tempfile.TemporaryDirectory() as folder:
        for count in (1, 100, given.keys):
            file = Path(folder) / f"{count}.json"
            written(file, tokens[-count:])
            door = KeyAuthenticator(file)
            costs[count] = microseconds(partial(asked, door, right))
            if count < given.keys:
                door.close()
        told = abs(welch(*timed(door, tokens, (FIRST, LAST), given.tries)))
        same = abs(welch(*timed(door, tokens, (FIRST, FIRST), given.tries)))
        door.close()
    for count, cost in costs.items():
        print(f"{count:6} keys: {cost:.2f} us of CPU a request")
    print(f"wrong first or last character, {given.tries} tries: |t| = {told:.2f}")
    print(f"two halves of one kind: |t| = {same:.2f}")
    if given.json:
        report = {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": f"{processor_name()}, {platform.system()}",
            "us_a_request": costs,
            "tries": given.tries,
            "t_first_or_last": told,
            "t_same": same,
        }
        given.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
