"""The Python client as a wheel, made of the files that this server itself imports."""

from __future__ import annotations

import base64
import hashlib
import io
import zipfile
from collections.abc import Iterator
from functools import cache
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path

from packaging.requirements import Requirement

_DISTRIBUTION, _BUNDLING = "fovea-client", "fovea-serve"
_SUMMARY = "Typed client of a Fovea server: image in, boxes out. Needs no runtime."
_REQUIRED = ("httpx", "numpy", "sniffio")
_LICENCE = "licenses/LICENSE"
_WHEEL = "Wheel-Version: 1.0\nGenerator: fovea\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
# The earliest that a ZIP file can have: equal files make equal wheels.
_DATE = (1980, 1, 1, 0, 0, 0)


def wheel_name() -> str:
    """Return the file's name, which pip reads the version from."""
    return f"fovea_client-{_source().version}-py3-none-any.whl"


@cache
def wheel() -> bytes:
    """Make the wheel (PyPA, "Binary distribution format")."""
    info = f"fovea_client-{_source().version}.dist-info"
    record = ""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in [*_modules(), *((f"{info}/{name}", data) for name, data in _about())]:
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record += f"{name},sha256={digest},{len(data)}\n"
            _write(archive, name, data)
        _write(archive, f"{info}/RECORD", f"{record}{info}/RECORD,,\n".encode())
    return file.getvalue()


def _write(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
    entry = zipfile.ZipInfo(name, _DATE)
    entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o100644 << 16
    archive.writestr(entry, data)


def _modules() -> Iterator[tuple[str, bytes]]:
    package = find_spec("fovea_client")
    assert package is not None
    assert package.origin is not None
    for path in sorted(Path(package.origin).parent.iterdir()):
        if path.suffix in (".py", ".typed"):
            yield f"fovea_client/{path.name}", path.read_bytes()


def _about() -> Iterator[tuple[str, bytes]]:
    yield "METADATA", _metadata().encode()
    yield "WHEEL", _WHEEL.encode()
    if licence := _source().read_text(_LICENCE):
        yield _LICENCE, licence.encode()


def _metadata() -> str:
    source = _source()
    required = [each for each in source.requires or () if Requirement(each).name in _REQUIRED]
    return "".join(
        f"{name}: {value}\n"
        for name, value in [
            ("Metadata-Version", "2.4"),
            ("Name", _DISTRIBUTION),
            ("Version", source.version),
            ("Summary", _SUMMARY),
            ("License-Expression", "Apache-2.0"),
            ("License-File", "LICENSE"),
            ("Requires-Python", source.metadata["Requires-Python"]),
            *(("Requires-Dist", each) for each in required),
        ]
    )


def _source() -> Distribution:
    """Return the distribution that has the client: its own, or the server's, which bundles it."""
    try:
        return distribution(_DISTRIBUTION)
    except PackageNotFoundError:
        return distribution(_BUNDLING)
