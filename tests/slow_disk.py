"""A disk that takes a megabyte a second: a loop device that the kernel throttles.

It is mounted so that each write waits for it, as writes do once the cache of a slow disk is full.
Nothing of it is a double, so it takes root, and a kernel with cgroups of block devices.
"""

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

RATE = 1_000_000
_CGROUPS = Path("/sys/fs/cgroup")
_LIMITS = {
    _CGROUPS / "blkio": ("blkio.throttle.write_bps_device", "{device} {rate}"),
    _CGROUPS: ("io.max", "{device} wbps={rate}"),
}
"""Groups in both versions of cgroups: the file of a limit, and a line of it."""

Throttle = Callable[[int], object]
"""Has the disk be slow for a process, by its id, and for those that it starts from then on."""


@contextmanager
def slow_disk(folder: Path, size: int = 32 << 20) -> Iterator[tuple[Path, Throttle]]:
    """Mount one below a folder; OSError or CalledProcessError where the machine does not let us."""
    image, mounted = folder / "disk.img", folder / "disk"
    with image.open("wb") as file:
        file.truncate(size)
    mounted.mkdir()
    _run("mkfs.ext4", "-q", "-F", str(image))
    device = _run("losetup", "--find", "--show", str(image))
    group = None
    try:
        number = Path(device).stat().st_rdev
        root, (limit, line) = next(each for each in _LIMITS.items() if each[0].is_dir())
        group = root / f"fovea-slow-{os.getpid()}"
        group.mkdir()
        name = f"{os.major(number)}:{os.minor(number)}"
        (group / limit).write_text(line.format(device=name, rate=RATE))
        _run("mount", "-o", "sync", device, str(mounted))
        try:
            yield mounted, lambda process: (group / "cgroup.procs").write_text(str(process))
        finally:
            _run("umount", "-l", str(mounted))
    finally:
        _run("losetup", "--detach", device)
        if group is not None and group.is_dir():
            for process in (group / "cgroup.procs").read_text().split():
                (root / "cgroup.procs").write_text(process)
            group.rmdir()


def _run(*command: str) -> str:
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return done.stdout.strip()
