"""Copy the colours and bones of drawings from the engines to the client and to the page.

    python -m tools.colours

The client imports no other package, and the page is JavaScript.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from fovea_engines.results import colours, skeleton

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "server/fovea_server/ui"
CLIENT = ROOT / "client" / "fovea_client"


def copies() -> dict[Path, str]:
    """Return the files, and the texts that they should have."""
    tables = {"PALETTE": f'"{colours.PALETTE.hex()}"', "SHADES": str(list(colours.SHADES))}
    return {
        CLIENT / "_colours.py": Path(colours.__file__).read_text(),
        CLIENT / "_skeleton.py": _skeleton(),
        PAGE / "colours.js": _constants(PAGE / "colours.js", tables),
        PAGE / "results.js": _constants(PAGE / "results.js", {"SEEN": str(skeleton.SEEN)}),
    }


def _constants(page: Path, values: Mapping[str, str]) -> str:
    text = page.read_text()
    for name, value in values.items():
        text = re.sub(rf"^const {name} = .*?;", f"const {name} = {value};", text, flags=re.M)
    return text


def _skeleton() -> str:
    """Write what the client draws of a skeleton."""
    names = "".join(f'    "{name}",\n' for name in skeleton.PERSON.names)
    bones = "".join(f"    {bone},\n" for bone in skeleton.PERSON.bones)
    return (
        '"""Keypoints of a person, bones between them, and the score of one that is seen."""\n'
        f"\nPERSON = (\n{names})\nBONES = (\n{bones})\nSEEN = {skeleton.SEEN}\n"
    )


if __name__ == "__main__":
    for path, text in copies().items():
        path.write_text(text)
