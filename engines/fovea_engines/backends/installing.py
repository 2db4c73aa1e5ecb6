"""Commands that install what is missing, for the interpreter that runs and the source it came from.

Fovea is on no package index: a command that named it alone would install whatever somebody else
registers there.
"""

from __future__ import annotations

import json
import platform
import shlex
import sys
from importlib.metadata import Distribution, distribution
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

NAME = "fovea-serve"


def install(*arguments: str) -> str:
    """The command that installs packages into this interpreter's environment."""
    python = sys.executable
    # Environments that uv makes have no pip.
    command = [python, "-m", "pip", "install"]
    if find_spec("pip") is None:
        command = ["uv", "pip", "install", "--python", python]
    return shlex.join([*command, *arguments])


def install_extra(extra: str) -> str:
    """The command that installs an extra of Fovea, from where Fovea was installed.

    Where that is not known or not there any more, as in a container, it names what the extra
    requires. Where the extra has nothing for this system, it says so instead.
    """
    fovea = distribution(NAME)
    requirements = _requirements(fovea, extra)
    if not requirements:
        return f"there are no packages of it for {sys.platform} on {platform.machine()}"
    return install(*(_from_source(fovea, extra) or requirements))


def _from_source(fovea: Distribution, extra: str) -> list[str] | None:
    """What to install again with the extra, by PEP 610's record of what was installed."""
    source = json.loads(fovea.read_text("direct_url.json") or "{}")
    url: str = source.get("url", "")
    parts = urlsplit(url)
    path = Path(url2pathname(parts.path)) if parts.scheme == "file" else None
    if vcs := source.get("vcs_info"):
        below = f"#subdirectory={source['subdirectory']}" if "subdirectory" in source else ""
        return [f"{NAME}[{extra}] @ {vcs['vcs']}+{url}@{vcs['commit_id']}{below}"]
    if path is None:
        return [f"{NAME}[{extra}] @ {url}"] if url else None
    if not path.exists():
        return None
    editable = source.get("dir_info", {}).get("editable", False)
    return [*(["-e"] if editable else []), f"{path}[{extra}]"]


def _requirements(fovea: Distribution, extra: str) -> list[str]:
    from packaging.requirements import Requirement

    found = []
    for requirement in map(Requirement, fovea.requires or ()):
        marker, requirement.marker = requirement.marker, None
        if marker and marker.evaluate({"extra": extra}) > marker.evaluate({"extra": ""}):
            found.append(str(requirement))
    return found
