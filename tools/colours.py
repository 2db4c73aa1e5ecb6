"""Copy the colours and bones of drawings from the engines to the client, and colours to the page.

    python -m tools.colours

The client imports no other package, and the page is JavaScript.
"""

from __future__ import annotations

import re
from pathlib import Path

from fovea_engines.results import colours, skeleton

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "server/fovea_server/ui/colours.js"
CLIENT = ROOT / "client" / "fovea_client"


def copies() -> dict[Path, str]:
    """Return the files, and the texts that they should have."""
    tables = {"PALETTE": f'"{colours.PALETTE.hex()}"', "SHADES": str(list(colours.SHADES))}
    page = PAGE.read_text()
    for name, value in tables.items():
        page = re.sub(rf"^const {name} = .*;$", f"const {name} = {value};", page, flags=re.M)
    return {
        CLIENT / "_colours.py": Path(colours.__file__).read_text(),
        CLIENT / "_skeleton.py": Path(skeleton.__file__).read_text(),
        PAGE: page,
    }


if __name__ == "__main__":
    for path, text in copies().items():
        path.write_text(text)
