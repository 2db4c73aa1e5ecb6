"""Commands that install missing packages into this Python environment.

Fovea is not on a package index. A command with only its name would install a package that somebody
else registered under this name. So commands use the source of this installation.
"""

from __future__ import annotations

import json
import platform
import shlex
import sys
from importlib.metadata import Distribution, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

NAME = "fovea-serve"


def install(*arguments: str) -> str:
    """Return the command that installs packages into the environment of this interpreter."""
    python = sys.executable
    # Environments that uv creates have no pip.
    command = [python, "-m", "pip", "install"]
    if find_spec("pip") is None:
        command = ["uv", "pip", "install", "--python", python]
    return shlex.join([*command, *arguments])


def install_extra(extra: str) -> str:
    """Return the command that installs an extra of Fovea, from the source of this installation.

    If the source is unknown, as in a container, the command lists the requirements of the extra. If
    the extra has no requirements for this system, the text reports this instead.
    """
    fovea = distribution(NAME)
    requirements = _requirements(fovea, extra)
    if not requirements:
        return f"it has no packages for {sys.platform} on {platform.machine()}"
    return install(*(_find_source(fovea, extra) or requirements))


def _find_source(fovea: Distribution, extra: str) -> list[str] | None:
    """Return the source to install again from the PEP 610 record; None if there is no record."""
    try:
        source = json.loads(fovea.read_text("direct_url.json") or "{}")
        return _read_source(source, extra) if source else None
    except (AttributeError, LookupError, TypeError, ValueError):
        return None


def _read_source(source: dict[str, Any], extra: str) -> list[str] | None:
    below: str = source.get("subdirectory", "")
    url = urlsplit(source["url"])
    # The user name in the URL may be a secret, unless it is "git".
    user, _, host = url.netloc.rpartition("@")
    url = url._replace(
        netloc=f"git@{host}" if user == "git" else host,
        fragment=f"subdirectory={below}" if below else "",
    )
    if "vcs_info" in source:
        vcs, commit = source["vcs_info"]["vcs"], source["vcs_info"]["commit_id"]
        pinned = url._replace(path=f"{url.path}@{commit}").geturl()
        return [f"{NAME}[{extra}] @ {vcs}+{pinned}"]
    path = Path(url2pathname(url.path))
    if url.scheme == "file" and not path.exists():
        return None
    if url.scheme != "file" or (below and path.is_file()):
        return [f"{NAME}[{extra}] @ {url.geturl()}"]
    editable = source.get("dir_info", {}).get("editable", False)
    return [*(["-e"] if editable else []), f"{path / below}[{extra}]"]


def _requirements(fovea: Distribution, extra: str) -> list[str]:
    from packaging.requirements import Requirement

    found = []
    for requirement in map(Requirement, fovea.requires or ()):
        marker, requirement.marker = requirement.marker, None
        if marker and marker.evaluate({"extra": extra}) > marker.evaluate({"extra": ""}):
            found.append(str(requirement))
    return found
