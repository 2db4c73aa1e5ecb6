"""No process of ours looks up a host, connects to another machine, or writes to the home directory
by itself.
"""

import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from tests.forked import PROGRAM
from tests.serving import start_server
from tests.system import program

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        sys.platform != "linux", reason="calls of libraries are watched as on Linux"
    ),
]

# Each call is written down; then it is refused, so that no test depends on a network.
_WATCH = r"""#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <dlfcn.h>

static void note(const char *call, const char *host) {
    char line[400];
    int size = snprintf(line, sizeof line, "%s %s\n", call, host ? host : "-");
    int file = open(getenv("WATCHED"), O_WRONLY | O_APPEND | O_CREAT, 0644);
    if (file >= 0 && write(file, line, size) == size) close(file);
}

static int is_own(const char *host) {
    unsigned char address[16];
    return !host || !strcmp(host, "localhost") || inet_pton(AF_INET, host, address) == 1
        || inet_pton(AF_INET6, host, address) == 1;
}

int getaddrinfo(const char *host, const char *port, const struct addrinfo *hints,
                struct addrinfo **found) {
    if (!is_own(host)) {
        note("getaddrinfo", host);
        return EAI_NONAME;
    }
    return ((int (*)(const char *, const char *, const struct addrinfo *, struct addrinfo **))
                dlsym(RTLD_NEXT, "getaddrinfo"))(host, port, hints, found);
}

int connect(int handle, const struct sockaddr *to, socklen_t size) {
    if (to->sa_family == AF_INET) {
        struct in_addr address = ((const struct sockaddr_in *)to)->sin_addr;
        if (ntohl(address.s_addr) >> 24 != 127) note("connect", inet_ntoa(address));
    }
    return ((int (*)(int, const struct sockaddr *, socklen_t))
                dlsym(RTLD_NEXT, "connect"))(handle, to, size);
}
"""


@pytest.fixture(scope="module")
def watch(tmp_path_factory) -> Path:
    """A library that writes down what the process that loads it looks up and connects to."""
    compiler = program("cc", "gcc", package="gcc")
    folder = tmp_path_factory.mktemp("watch")
    source = folder / "watch.c"
    source.write_text(_WATCH)
    library = folder / "watch.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return library


@pytest.fixture
def environment(watch, tmp_path) -> dict[str, str]:
    """Variables of a process that is watched, in a home directory of its own."""
    (tmp_path / "home").mkdir()
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("XDG_", "ORT_"))}
    return kept | {
        "LD_PRELOAD": str(watch),
        "WATCHED": str(tmp_path / "watched"),
        "HOME": str(tmp_path / "home"),
    }


def _done(folder: Path) -> tuple[str, list[str]]:
    """Return what was looked up or connected to, and the files of the home directory."""
    watched = folder / "watched"
    files = [str(p.relative_to(folder)) for p in (folder / "home").rglob("*") if p.is_file()]
    return (watched.read_text() if watched.exists() else "", files)


def test_the_watch_sees_what_python_looks_up(environment, tmp_path):
    asking = "import socket\ntry: socket.create_connection(('fovea.invalid', 9))\nexcept OSError: 0"
    subprocess.run([sys.executable, "-c", asking], env=environment, check=True)
    assert _done(tmp_path)[0] == "getaddrinfo fovea.invalid\n"


def test_nothing_is_looked_up(environment, demo_repository, demo_versions, demo_model, tmp_path):
    """Build for both backends, predict with OpenVINO, and serve with ONNX Runtime."""
    image = demo_model.with_name("digit.jpg")

    def fovea(*arguments: object) -> str:
        command = [sys.executable, *PROGRAM, *map(str, arguments)]
        done = subprocess.run(
            command, env=environment, cwd=tmp_path, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    fovea("build", demo_model, "--name", "built", "--repository", "built")
    assert fovea("predict", "digits", image, "--repository", demo_versions)
    server = start_server(demo_repository, tmp_path, environment=environment)
    try:
        answer = httpx.post(server.predict_url("digits"), content=image.read_bytes())
        assert answer.status_code == 200, answer.text
    finally:
        server.stop()
    assert _done(tmp_path) == ("", [])
