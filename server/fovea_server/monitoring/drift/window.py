"""The last images that a model version has answered, as far as they are compared."""

from __future__ import annotations

import time
from collections import deque

from fovea_engines.repository.card import Baseline, Floats, Found
from fovea_preprocess.errors import FoveaError
from fovea_preprocess.image import brightness
from fovea_server.tensors.image_messages import SentImage

IMAGES = 500
"""As many images make a window."""

LARGEST = 24_000_000
"""Most pixels of an image whose brightness is looked at: nobody counts the memory that it takes."""

_EVERY_S = 0.25
# A look takes a fiftieth of the time of one processor at most.
_REST = 49


class LiveWindow:
    """The last images of a model version: what was found, and how bright some were.

    Attributes:
        found: added to on the event loop.
        next_look: time from which on the brightness of another image may be looked at.
        left_out: number of images whose requests had options by which less, or other, is found.
    """

    def __init__(self, baseline: Baseline) -> None:
        self.baseline = baseline
        self.found: deque[Found] = deque(maxlen=IMAGES)
        self.next_look = 0.0
        self.left_out = 0
        self._brightness: deque[float] = deque(maxlen=IMAGES)

    def look(self, image: SentImage) -> None:
        """Add the brightness of an image; call it in a thread, with `next_look` infinite."""
        began = time.monotonic()
        try:
            self._brightness.append(brightness(image))
        except FoveaError:
            pass  # it is over the usual limits of a decoding, and the server has others
        finally:
            ended = time.monotonic()
            self.next_look = ended + max(_EVERY_S, _REST * (ended - began))

    def count(self) -> dict[str, Floats]:
        """Return the number of images in each bin of the baseline, by quantity."""
        return self.baseline.count(list(self.found), list(self._brightness))
