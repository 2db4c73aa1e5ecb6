"""The blocks of README and docs, and servers that they start."""

import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.serving import wait_until_ready

ROOT = Path(__file__).resolve().parents[2]
_BLOCK = re.compile(r"^```(bash|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(text: str) -> list[tuple[str, str]]:
    """The blocks of a page, or of a part of it, that can be run: bash or python, and the text."""
    return _BLOCK.findall(text)


def ported(block: str, ports: Mapping[int, int]) -> str:
    """The block with the ports of a test in place of 8000 and those that follow."""
    return re.sub(r"(?<=:)800\d", lambda named: str(ports[int(named[0])]), block)


@contextmanager
def served(line: str, port: int) -> Iterator[None]:
    """Run a line that starts a server, which is ready meanwhile and must stop in order."""
    server = subprocess.Popen(line.split())
    try:
        wait_until_ready(port)
        yield
    finally:
        server.terminate()
        assert server.wait(120) == 0
