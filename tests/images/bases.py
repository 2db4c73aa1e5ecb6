"""Stand-ins for Docker's official Python images, made from Debian's own packages.

They have the Debian release and the Python of the images whose names they get. They cannot show
what is peculiar to the real ones: a Python compiled apart from Debian's, in /usr/local, and their
size.
"""

import ast
import re
import subprocess
import sys
from pathlib import Path

from tests.images.podman import Podman

ROOT = Path(__file__).resolve().parents[2]
BARE = ("make", "python3", "python3-venv", "ca-certificates")
# Of pip's configuration, what says where packages come from and how to get there.
OPTIONS = ("index-url", "extra-index-url", "trusted-host", "proxy", "timeout")
CERTIFICATES = "/etc/ssl/certs"
# Without Docker Hub's isolation of steps, which takes rights that a container in CI has not.
BUILD = ("build", "--quiet", "--format", "docker", "--network", "host", "--isolation", "chroot")

SLIM = """
FROM localhost/bare
RUN apt-get update -qq && apt-get install -qq --no-install-recommends python3-pip >/dev/null \\
    && rm -rf /var/lib/apt/lists/* /usr/lib/python3*/EXTERNALLY-MANAGED \\
    && ln -s python3 /usr/bin/python
"""
WITH_COMPILERS = """
FROM {slim}
RUN apt-get update -qq && apt-get install -qq --no-install-recommends g++ python3-dev >/dev/null \\
    && rm -rf /var/lib/apt/lists/*
# How quick pycuda is, which is compiled with them, nobody asks.
ENV CFLAGS=-O0 CXXFLAGS=-O0
"""

# As in the image of that name: who runs what, and what it may write.
PROMETHEUS = """
FROM localhost/bare
RUN apt-get update -qq && apt-get install -qq --no-install-recommends prometheus >/dev/null \\
    && rm -rf /var/lib/apt/lists/* \\
    && install --directory --owner=nobody --group=nogroup /prometheus
USER nobody
WORKDIR /prometheus
VOLUME /prometheus
EXPOSE 9090
ENTRYPOINT ["/bin/prometheus"]
"""


def mirror() -> list[str]:
    """The mirror that this machine's apt uses, if it is one of Debian; else debootstrap's own."""
    release = Path("/etc/os-release")
    if not release.is_file() or "\nID=debian\n" not in f"\n{release.read_text()}":
        return []
    lists = [*Path("/etc/apt/sources.list.d").glob("*.sources"), Path("/etc/apt/sources.list")]
    text = "\n".join(path.read_text() for path in lists if path.is_file())
    found = re.search(r"^(?:URIs:|deb(?: \[.*?\])?)\s+(\S+/debian/?)(?:\s|$)", text, re.MULTILINE)
    return [found[1]] if found else []


def mounts(folder: Path) -> list[str]:
    """Options of podman with which pip in a container finds packages as pip does here."""
    listed = subprocess.check_output([sys.executable, "-m", "pip", "config", "list"], text=True)
    lines = ["[global]"]
    for name, _, value in (line.partition("=") for line in listed.splitlines()):
        option = name.rpartition(".")[2]
        words = [w for w in ast.literal_eval(value).split() if not w.startswith("file:")]
        if option in OPTIONS and words:
            lines.append(f"{option} = {' '.join(words)}")
    # The certificates of this machine, on which a company's proxy may depend.
    lines.append(f"cert = {CERTIFICATES}/ca-certificates.crt")
    (folder / "pip.conf").write_text("\n".join(lines) + "\n")
    return [f"-v={folder}/pip.conf:/etc/pip.conf:ro", f"-v={CERTIFICATES}:{CERTIFICATES}:ro"]


def make_bare(podman: Podman, release: str) -> None:
    """localhost/bare: Debian with what the README asks for, and nothing else."""
    root, packed = podman.folder / "root", podman.folder / "root.tar"
    command = ["debootstrap", "--variant=minbase", f"--include={','.join(BARE)}"]
    made = subprocess.run(
        [*command, release, str(root), *mirror()], capture_output=True, text=True, check=False
    )
    assert made.returncode == 0, made.stdout[-2000:] + made.stderr
    left_out = ["--exclude=./var/cache/apt/*", "--exclude=./var/lib/apt/lists/*"]
    subprocess.run(["tar", "-C", root, *left_out, "-cf", packed, "."], check=True)
    podman("import", packed, "localhost/bare")
    subprocess.run(["rm", "--recursive", "--force", root, packed], check=True)


def make_stand_in(podman: Podman, name: str, dockerfile: str) -> None:
    """An image of that name; its Python must be of the version in the name."""
    folder = podman.folder / "stand-in"
    folder.mkdir(exist_ok=True)
    (folder / "Dockerfile").write_text(dockerfile)
    podman(*BUILD, *mounts(podman.folder), "-t", f"docker.io/library/{name}", folder)
    [version] = re.findall(r"python:(3\.\d+)-", name)
    assert f"Python {version}." in podman("run", "--rm", name, "python", "--version")


def make_prometheus(podman: Podman, name: str) -> str:
    """An image of that name with Debian's Prometheus; its version."""
    folder = podman.folder / "prometheus"
    folder.mkdir()
    (folder / "Dockerfile").write_text(PROMETHEUS)
    podman(*BUILD, *mounts(podman.folder), "-t", f"docker.io/{name}", folder)
    told = podman("run", "--rm", name, "--version")
    return re.findall(r"version (\S+)", told)[0]
