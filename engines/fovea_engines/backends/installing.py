"""Returns commands that install missing packages into this Python environment.

Fovea is not on a package index. If a command contained only Fovea's name, it would install a
package that somebody else may have registered under this name. So the commands contain the source
from which Fovea was installed.
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
    """Return the shell command that installs packages into this interpreter's environment.

    `arguments` are the packages and options for `pip install`.
    """
    python = sys.executable
    # Environments that uv creates have no pip.
    command = [python, "-m", "pip", "install"]
    if find_spec("pip") is None:
        command = ["uv", "pip", "install", "--python", python]
    return shlex.join([*command, *arguments])


def install_extra(extra: str) -> str:
    """Return the shell command that installs an extra of Fovea from this installation's source.

    If the source is unknown, e.g. in a container, the command lists the requirements of the extra.
    If the extra has no requirements for this system, the function returns a text about this instead
    of a command.
    """
    fovea = distribution(NAME)
    requirements = _requirements(fovea, extra)
    if not requirements:
        return f"it is not available for {sys.platform} on {platform.machine()}"
    return install(*(_find_source(fovea, extra) or requirements))


def _find_source(fovea: Distribution, extra: str) -> list[str] | None:
    """Return the arguments for pip with Fovea's source, or None if the source is unknown.

    An installer records the source in the file direct_url.json (PEP 610).
    """
    try:
        source = json.loads(fovea.read_text("direct_url.json") or "{}")
        return _read_source(source, extra) if source else None
    except (AttributeError, LookupError, TypeError, ValueError):
        return None


def _read_source(source: dict[str, Any], extra: str) -> list[str] | None:
    below: str = source.get("subdirectory", "")
    url = urlsplit(source["url"])
    # Remove the user name from the URL, because it may be an access token. "git" is a common user
    # name for SSH and no secret.
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
