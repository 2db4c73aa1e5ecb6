"""Clients that know of each request whether the server had taken it on."""

import http.client
import json
import socket
import threading
import time
from collections import Counter


class Load:
    """Asks without pause until nobody listens; a context manager.

    Attributes:
        counts: "answered", "lost" of those that the server took on, and "refused" before.
    """

    def __init__(
        self, port: int, model: str, image: bytes, key: str = "", clients: int = 4
    ) -> None:
        self._port, self._image = port, image
        self._head = (
            f"POST /v1/models/{model}/predict HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            f"X-API-Key: {key}\r\n"
            f"Expect: 100-continue\r\nContent-Length: {len(image)}\r\n\r\n"
        ).encode()
        self.counts: Counter[str] = Counter()
        self._threads = [threading.Thread(target=self._run) for _ in range(clients)]

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for thread in self._threads:
            thread.join()

    def wait_for(self, answers: int) -> None:
        while self.counts["answered"] < answers:
            assert not self.counts["lost"]
            time.sleep(0.05)

    def _run(self) -> None:
        outcome = "answered"
        while outcome == "answered":
            outcome = self._ask()
            self.counts[outcome] += 1

    def _ask(self) -> str:
        try:
            with socket.create_connection(("127.0.0.1", self._port), timeout=60) as connection:
                connection.sendall(self._head)
                if not connection.recv(1000).startswith(b"HTTP/1.1 100 "):
                    return "refused"
                return self._finish(connection)
        except OSError:
            return "refused"

    def _finish(self, connection: socket.socket) -> str:
        """The server has read the head, and asks for the body: now it has to answer."""
        try:
            connection.sendall(self._image)
            answer = http.client.HTTPResponse(connection)
            answer.begin()
            whole = answer.status == 200 and bool(json.loads(answer.read())["images"])
        except (OSError, http.client.HTTPException):
            return "lost"
        return "answered" if whole else "lost"
