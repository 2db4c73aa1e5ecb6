"""Progress that is written down."""

from fovea_engines.progress import Progress


class Noting(Progress):
    """Keeps what it counts and notes."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: list[tuple[int, int]] = []
        self.notes: list[str] = []

    def each(self, things, total):
        for done, thing in enumerate(things, 1):
            self.counts.append((done, total))
            yield thing

    def note(self, text):
        self.notes.append(text)
