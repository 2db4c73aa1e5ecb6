"""The blocks of README and docs, and servers that they start."""

import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.serving import wait_until_ready

ROOT = Path(__file__).resolve().parents[2]
# A measurement that is to be believed takes longer than one that only runs.
_BRIEFLY = {
    "fovea bench": " --seconds 0.5 --warmup 0",
    "fovea tune": " --seconds 0.2 --clients 1 --p99 60s",
}
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


def run_blocks(text: str, ports: Mapping[int, int]) -> str:
    """Run the blocks of a text in order, and return their output.

    A `fovea serve` runs until the last block has ended. Measurements are short.
    """
    output = []
    with ExitStack() as servers:
        for kind, block in blocks(text):
            code = ported(block, ports)
            if kind == "python":
                output.append(subprocess.check_output([sys.executable, "-c", code], text=True))
                continue
            for line in code.splitlines():
                if line.startswith("fovea serve"):
                    servers.enter_context(served(line, ports[8000]))
                    continue
                extra = next((more for key, more in _BRIEFLY.items() if key in line), "")
                output.append(subprocess.check_output(line + extra, shell=True, text=True))
    return "\n".join(output)
