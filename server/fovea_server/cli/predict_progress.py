"""Shows the progress of `fovea predict`: a bar on a terminal, otherwise a line now and then."""

from __future__ import annotations

import time
from datetime import timedelta

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.text import Text

from fovea_engines.progress import SILENCE_S
from fovea_server.offline.entry import Entry
from fovea_server.offline.save import Counts


class PredictProgress(Progress):
    """Shows the number of predicted images, of `total` images, on stderr; a context manager."""

    def __init__(self, total: int) -> None:
        console = Console(stderr=True)
        super().__init__(
            BarColumn(),
            TextColumn("{task.description}", markup=False),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._total = total
        self._bar = self.add_task("", total=total)
        self._began = self._last_shown = time.monotonic()

    def add(self, counts: Counts, entry: Entry) -> None:
        """Update the counts after an image; if the image has an error, print the error first."""
        if (error := entry.problem) is not None:
            self.console.print(Text(error, style="red"), soft_wrap=True)
        self.show(counts)

    def show(self, counts: Counts) -> None:
        """Show the number of images done, the speed, and the time left."""
        now = time.monotonic()
        if not self.disable:
            self.update(self._bar, completed=counts.images, description=self._text(counts, now))
        elif now - self._last_shown >= SILENCE_S:
            self._last_shown = now
            self.console.print(self._text(counts, now), highlight=False, soft_wrap=True)

    def _text(self, counts: Counts, now: float) -> str:
        # A video may have more frames than its header declares.
        total = max(self._total, counts.images)
        text = f"{counts.images:,} of {total:,} images"
        rate = (counts.images - counts.before) / max(now - self._began, 1e-6)
        if rate > 0:
            left = timedelta(seconds=round((total - counts.images) / rate))
            text += f", {rate:,.1f} images/s, {left} left"
        return text + (f", {counts.failed:,} failed" if counts.failed else "")
