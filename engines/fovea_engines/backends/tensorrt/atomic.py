"""Writes files that other processes may read and write at the same time."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import NamedTemporaryFile


def write_whole(path: Path, content: bytes) -> None:
    """Write a file atomically; creates its folder.

    Raises:
        OSError: the file cannot be written; its previous content is kept.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with NamedTemporaryFile(prefix=f".{path.name}.", dir=path.parent, delete=False) as file:
        new = Path(file.name)
        try:
            file.write(content)
            file.flush()
            new.chmod(0o644)  # readable for other users' processes
            os.fsync(file.fileno())
            new.replace(path)
        except BaseException:
            new.unlink(missing_ok=True)
            raise
