"""Clients that ask for real images, and remember everything that was not answered."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import cycle

import httpx
import numpy as np
import tritonclient.grpc as triton
from tests.conftest import DEMO, ROOT
from tritonclient.utils import InferenceServerException

PHOTOGRAPHS = ROOT / "engines" / "fovea_engines/evaluation/photographs"
IMAGES = [
    path.read_bytes() for path in (*sorted(DEMO.glob("*.jpg")), *sorted(PHOTOGRAPHS.glob("*.jpg")))
]
CLIENTS = 16

Client = Callable[[], AbstractContextManager[Callable[[bytes], str]]]
"""Opens a connection, and sends images over it; each returns the version that answered."""


class Load:
    """A context manager: asks from entering to leaving.

    Attributes:
        answered: answers by the version of the model.
        failed: what any client got instead.
        pause_s: how long each client waits before it asks.
    """

    def __init__(self, client: Client, clients: int = CLIENTS) -> None:
        self.pause_s = 0.0
        self._client = client
        self._end = threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(clients)]
        self.answered: Counter[str] = Counter()
        self.failed: list[str] = []

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join()

    def wait_for_more(self, answers: int = 4 * CLIENTS) -> None:
        """Wait for so many further answers, or for a failure."""
        wanted, until = self.answered.total() + answers, time.monotonic() + 120
        while self.answered.total() < wanted and not self.failed:
            assert time.monotonic() < until
            time.sleep(0.05)
        assert not self.failed, self.failed

    def _run(self) -> None:
        images = cycle(IMAGES)
        with self._client() as ask:
            while not self._end.wait(self.pause_s):
                try:
                    self.answered[ask(next(images))] += 1
                except (httpx.HTTPError, InferenceServerException, AssertionError) as error:
                    self.failed.append(f"{type(error).__name__}: {error}")
                    return


def over_http(url: str, model: str = "digits") -> Client:
    """Clients of /v1, each of which keeps its connection."""

    @contextmanager
    def connect() -> Iterator[Callable[[bytes], str]]:
        with httpx.Client(timeout=60) as client:

            def ask(image: bytes) -> str:
                answer = client.post(f"{url}/v1/models/{model}/predict", content=image)
                assert answer.status_code == 200, answer.text
                version: str = answer.json()["version"]
                return version

            yield ask

    return connect


def over_grpc(address: str, model: str = "digits") -> Client:
    """Clients of Triton's gRPC."""

    @contextmanager
    def connect() -> Iterator[Callable[[bytes], str]]:
        with triton.InferenceServerClient(address) as client:

            def ask(image: bytes) -> str:
                given = triton.InferInput("images", [1], "BYTES")
                given.set_data_from_numpy(np.array([image], dtype=object))
                result = client.infer(model, [given], client_timeout=60)
                version: str = result.get_response().model_version
                return version

            yield ask

    return connect
