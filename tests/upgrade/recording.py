"""The folder that an older version recorded: its constants, and how to pack and unpack it."""

import json
import lzma
import shutil
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

VERSION = "v0_1_0"
DATA = Path(__file__).parent / VERSION
"""`record.py` wrote it."""
COMMIT = "795dae8e"
"""The released version, which answered."""
FLAGS = (
    "--allow-url=true",
    "--url-allow-private=true",
    "--url-allow-host=127.0.0.1",  # for the camera; 0.1.0 had no such flag
    "--allow-client-shm=true",
    "--api=deepstack=digits",
    "--api=roboflow",
    "--max-queue=8",
    "--max-megapixels=1",
    "--http-max-input-size=3000000",
    "--strict-readiness=false",
    "--model-control-mode=explicit",
    "--load-model=*",
    "--log-format=json",
    "--log-verbose=1",
)
"""The flags of the server that answered, beside flags for folders and ports."""
TOUCHED = 1_767_225_600
"""The modification time of the images: `fovea predict --resume` compares it."""
CLIP, CAMERA = "@CLIP@", "@CAMERA@"
"""Placeholders in the recorded files for the URLs of the clip and of the camera."""
# Networks share most of their rounded weights: together in one archive they compress well.
_ARCHIVE, _ARCHIVED, _LARGE = "engines.tar.xz", (".onnx", ".bin", ".xml"), 10_000
_WITH_URLS = ("streams.json", "streams.toml")


def load(name: str) -> Any:
    """Read a recorded document."""
    path = DATA / name
    if path.exists():
        return json.loads(path.read_text())
    return json.loads(lzma.decompress(path.with_name(f"{name}.xz").read_bytes()))


def pack(source: Path, target: Path, urls: Mapping[str, str]) -> None:
    """Copy a repository into the data, compressed, with placeholders for URLs."""
    target.mkdir()
    with tarfile.open(target / _ARCHIVE, "w:xz", preset=9) as archive:
        for path in _list_files(source):
            name = path.relative_to(source)
            if path.suffix in _ARCHIVED and path.stat().st_size > _LARGE:
                entry = tarfile.TarInfo(name.as_posix())
                entry.size = path.stat().st_size
                with path.open("rb") as stream:
                    archive.addfile(entry, stream)
            else:
                _copy(path, target / name, urls)


def unpack(target: Path, urls: Mapping[str, str]) -> Path:
    """Copy the recorded repository to a writable folder, with URLs for the placeholders."""
    source = DATA / "repository"
    for path in _list_files(source):
        if path.name != _ARCHIVE:
            _copy(path, target / path.relative_to(source), urls)
    with tarfile.open(source / _ARCHIVE) as archive:
        archive.extractall(target, filter="data")
    return target


def _list_files(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*")) if path.is_file()]


def _copy(path: Path, target: Path, urls: Mapping[str, str]) -> None:
    """Copy a file, and replace its URLs."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if path.name not in _WITH_URLS:
        shutil.copyfile(path, target)
        return
    text = path.read_text()
    for before, after in urls.items():
        text = text.replace(before, after)
    target.write_text(text)
