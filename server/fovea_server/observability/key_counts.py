"""The requests and the images of each key, counted."""

from __future__ import annotations

from collections import Counter

from fovea_server.observability.family import Family

# Each label costs memory and time of every scrape.
_MAX = 100
_OTHERS = "others"


class KeyCounts:
    """Counts by the names of keys; one thread adds, any may read.

    The first hundred names have labels of their own; all others are counted together.
    """

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._requests: Counter[tuple[str, str]] = Counter()
        self._images: Counter[str] = Counter()

    def count(self, name: str, status: int | str, images: int) -> None:
        """Count a request that was answered, and the images that it was charged with."""
        self._requests[self._label(name), str(status)] += 1
        self.charge(name, images)

    def charge(self, name: str, images: int) -> None:
        """Count images of a request that is counted elsewhere."""
        self._images[self._label(name)] += images

    def _label(self, name: str) -> str:
        if name not in self._names and len(self._names) < _MAX:
            self._names.add(name)
        return name if name in self._names else _OTHERS

    def families(self) -> list[Family]:
        """Build the families; none before the first request with a key."""
        requests = Family(
            "fovea_key_requests_total", "counter", "Requests for inference, by key and status"
        )
        images = Family("fovea_key_images_total", "counter", "Images that keys were charged with")
        for (name, status), count in list(self._requests.items()):
            requests.add({"key": name, "status": status}, count)
        for name, count in list(self._images.items()):
            images.add({"key": name}, count)
        return [requests, images] if self._names else []
