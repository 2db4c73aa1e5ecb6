"""Podman with settings and storage of its own: nothing of the user's is touched or left behind."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

# Program -> its Debian package. The last lets containers find one another by name.
NEEDED = {
    "podman": "podman",
    "runc": "runc",
    "debootstrap": "debootstrap",
    "iptables": "iptables",
    "/usr/lib/podman/aardvark-dns": "aardvark-dns",
}
# crun, which Podman prefers, refuses machines with both versions of cgroups; a container within
# a container may not raise its limits.
SETTINGS = """
[engine]
runtime = "runc"
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]
[network]
network_config_dir = "{folder}/networks"
"""


def why_not() -> str | None:
    """What keeps this machine from making images, and how to mend it."""
    if missing := [package for name, package in NEEDED.items() if shutil.which(name) is None]:
        return f"images cannot be built here: install the Debian package {' '.join(missing)}"
    if os.geteuid() != 0:
        return "images cannot be built here: debootstrap needs root; run this target as root"
    info = subprocess.run(["podman", "info"], capture_output=True, text=True, check=False)
    return info.stderr.strip() or "podman does not run" if info.returncode else None


class Podman:
    """The `podman` command over a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        storage = f'[storage]\ndriver = "overlay"\ngraphroot = "{folder}/storage"\n'
        (folder / "storage.conf").write_text(f'{storage}runroot = "{folder}/run"\n')
        (folder / "containers.conf").write_text(SETTINGS.format(folder=folder))
        (folder / "tmp").mkdir()
        self.environment = os.environ | {
            # What builds cache, pip's downloads among it, is kept for this run alone.
            "TMPDIR": str(folder / "tmp"),
            "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
            "CONTAINERS_CONF": str(folder / "containers.conf"),
        }

    def __call__(self, *arguments: str | Path) -> str:
        """What a command prints; it must succeed."""
        done = self.ask(*arguments)
        assert done.returncode == 0, f"podman {arguments}\n{done.stdout}{done.stderr}"
        return done.stdout.strip()

    def ask(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["podman", *map(str, arguments)],
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def shell(self, command: str, folder: Path) -> str:
        """What a line of a shell prints that runs podman-compose; it must succeed."""
        done = subprocess.run(
            command,
            shell=True,
            cwd=folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout

    def size_mb(self, image: str) -> int:
        return round(int(self("image", "inspect", "--format", "{{.Size}}", image)) / 1e6)


@contextmanager
def podman(folder: Path) -> Iterator[Podman]:
    """In the end no container, image, volume or network is left; skips where podman cannot run."""
    if problem := why_not():
        pytest.skip(problem)
    made = Podman(folder)
    try:
        yield made
    finally:
        made.ask("rm", "--all", "--force", "--time", "0")
        made.ask("network", "prune", "--force")
        made.ask("image", "umount", "--all")
        shutil.rmtree(folder, ignore_errors=True)
