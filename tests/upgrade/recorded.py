"""The folder that an older version wrote, and how it is put back into use."""

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
"""The version in the field, which wrote it."""
FLAGS = (
    "--allow-url=true",
    "--url-allow-private=true",
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
"""The flags of the server that answered, beside those that name a folder or a port."""
TOUCHED = 1_767_225_600
"""The time of change of the images: `fovea predict --resume` compares it."""
CLIP, CAMERA = "@CLIP@", "@CAMERA@"
"""These stand in the recorded files for the address of the clip and that of the camera."""
# These go into one archive: the networks share most of their weights, which are rounded.
_ARCHIVE, _ARCHIVED, _LARGE = "engines.tar.xz", (".onnx", ".bin", ".xml"), 10_000
_WITH_PLACES = ("streams.json", "streams.toml")


def load(name: str) -> Any:
    """Read one of the recorded documents."""
    path = DATA / name
    if path.exists():
        return json.loads(path.read_text())
    return json.loads(lzma.decompress(path.with_name(f"{name}.xz").read_bytes()))


def pack(source: Path, target: Path, places: Mapping[str, str]) -> None:
    """Copy a repository into the data, smaller, and without the addresses of one machine."""
    target.mkdir()
    with tarfile.open(target / _ARCHIVE, "w:xz", preset=9) as archive:
        for path in _files(source):
            name = path.relative_to(source)
            if path.suffix in _ARCHIVED and path.stat().st_size > _LARGE:
                entry = tarfile.TarInfo(name.as_posix())
                entry.size = path.stat().st_size
                with path.open("rb") as stream:
                    archive.addfile(entry, stream)
            else:
                _put(path, target / name, places)


def unpack(target: Path, places: Mapping[str, str]) -> Path:
    """Copy the recorded repository to where a server may write."""
    source = DATA / "repository"
    for path in _files(source):
        if path.name != _ARCHIVE:
            _put(path, target / path.relative_to(source), places)
    with tarfile.open(source / _ARCHIVE) as archive:
        archive.extractall(target, filter="data")
    return target


def _files(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*")) if path.is_file()]


def _put(path: Path, place: Path, places: Mapping[str, str]) -> None:
    """Copy a file, with other addresses if it has some."""
    place.parent.mkdir(parents=True, exist_ok=True)
    if path.name not in _WITH_PLACES:
        shutil.copyfile(path, place)
        return
    text = path.read_text()
    for before, after in places.items():
        text = text.replace(before, after)
    place.write_text(text)
