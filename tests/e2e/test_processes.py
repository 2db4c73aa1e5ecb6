"""Processes of ours on a machine of others: killed, without a name or a home, without a network.

Each leaves nothing behind, needs no user, and looks up, connects to and writes what it is told.
"""

import base64
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import httpx
import psutil
import pytest
from tests.conftest import DEMO
from tests.forked import PROGRAM
from tests.keyed import until
from tests.server.registries import adder
from tests.serving import RunningServer, start_server
from tests.system import program

from fovea_engines.repository.locking import remove_abandoned, temporary_folder

pytestmark = pytest.mark.slow

FOVEA = (sys.executable, "-m", "fovea_server.cli.main")


@pytest.fixture
def temporary(tmp_path) -> Path:
    """The folder of temporary files, for the processes of one test."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    return folder


def server_below(process: psutil.Process) -> psutil.Process | None:
    for child in process.children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if "serve" in child.cmdline():
                return child
    return None


@pytest.mark.parametrize(
    ("command", "number"),
    [
        *(("tune", signal.SIGKILL), ("tune", signal.SIGTERM)),
        *(("bench", signal.SIGKILL), ("bench", signal.SIGHUP)),
    ],
)
def test_no_server_outlives_its_command(demo_repository, temporary, command, number):
    typed = [command, "digits", "--repository", demo_repository, "--images", DEMO]
    typed += ["--seconds", "60", "--clients", "1"]
    environment = os.environ | {"TMPDIR": str(temporary)}
    with subprocess.Popen(
        [*FOVEA, *map(str, typed)],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        here = psutil.Process(process.pid)
        until(lambda: server_below(here))
        server = server_below(here)
        until(lambda: server.net_connections("tcp"))
        others = here.children(recursive=True)
        process.send_signal(number)
        process.wait(60)
    gone, alive = psutil.wait_procs(others, timeout=60)
    assert not alive
    assert server in gone
    if number == signal.SIGKILL and command == "tune":
        assert list(temporary.glob("fovea-tmp-copy-*"))
        started = subprocess.run(
            [*FOVEA, "serve", temporary / "nowhere"],
            env=environment,
            capture_output=True,
            check=False,
        )
        assert started.returncode == 2, "whatever it does then"
    assert not list(temporary.glob("fovea*"))


def test_an_upload_that_is_killed_leaves_nothing_to_the_next_server(tmp_path, temporary):
    (tmp_path / "repository").mkdir()
    model = adder(tmp_path, "adder") / "1" / "model.onnx"
    zeros = {"data_type": "TYPE_INT32", "dims": [4], "zero_data": True}
    warmup = {"name": "s", "inputs": {"X": zeros}, "batch_size": 1, "count": 10_000}
    parameters = {
        "config": json.dumps({"model_warmup": [warmup]}),
        "file:1/model.onnx": base64.b64encode(model.read_bytes()).decode(),
        "file:1/large": base64.b64encode(bytes(20 << 20)).decode(),
    }

    def serve() -> RunningServer:
        environment = os.environ | {"TMPDIR": str(temporary)}
        flags = ("--model-control-mode=explicit",)
        return start_server(tmp_path / "repository", tmp_path, flags, environment=environment)

    def upload() -> None:
        load = f"{first.url}/v2/repository/models/adder/load"
        with suppress(httpx.TransportError):
            httpx.post(load, json={"parameters": parameters}, timeout=60)

    first = serve()
    others = temporary / "fovea-tmp-model-of-a-live-server"
    others.mkdir()
    held = os.open(others, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "kept").mkdir(parents=True)
    (temporary / "fovea-tmp-link").symlink_to(elsewhere)
    asking = threading.Thread(target=upload)
    asking.start()
    until(lambda: list(temporary.glob("fovea-tmp-model-*/adder/1/large")))
    first.process.kill()
    first.process.wait()
    asking.join()
    assert list(temporary.glob("fovea-tmp-model-*/adder"))

    second = serve()
    assert {path.name for path in temporary.glob("fovea*")} == {others.name, "fovea-tmp-link"}
    assert (elsewhere / "kept").is_dir()
    os.close(held)
    assert second.stop() == 0


def test_a_temporary_folder_in_use_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with temporary_folder("one") as one:
        with temporary_folder("other") as other:
            remove_abandoned()
            assert one.is_dir()
            assert other.is_dir()
        assert not other.exists()
    assert not list(tmp_path.iterdir())


# A user who has a number alone: no name, no home and no variables. OpenShift gives each pod one.
UID = 1_000_660_000
# Else typer takes the shell that runs the tests, which is make's.
NO_DETECTION = "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION=1"
AS_NAMELESS = ["unshare", f"--map-user={UID}", "env", "-i", "PATH=/usr/bin:/bin", NO_DETECTION]


@pytest.fixture(scope="module")
def nameless() -> Callable[..., str]:
    """Run the command as that user: stdout."""
    try:
        subprocess.run([*AS_NAMELESS, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no process may become another user here: {error}")

    def run(*arguments: object, program: tuple[str, ...] = PROGRAM, code: int = 0) -> str:
        command = [*AS_NAMELESS, sys.executable, *program, *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr
        return done.stdout or done.stderr

    return run


def test_versions_change_in_its_name(nameless, demo_versions, tmp_path):
    repository = shutil.copytree(demo_versions, tmp_path / "repository")
    given = ("digits", "--repository", repository)
    assert "current" in nameless("promote", "digits", 1, "--repository", repository)
    assert "current again" in nameless("rollback", *given)
    events = json.loads(nameless("versions", "--history", *given, "--json"))["events"]
    assert [each["who"] for each in events[-2:]] == [str(UID)] * 2


def test_a_model_is_built_and_used(nameless, demo_model, tmp_path):
    repository = tmp_path / "repository"
    nameless("build", demo_model, "--repository", repository, "--backend", "onnxruntime")
    image = demo_model.with_name("digit.jpg")
    assert json.loads(nameless("predict", "digits", image, "--repository", repository, "--json"))
    assert "fov_" in nameless("key", "add", "anna", "--keys", tmp_path / "keys.json")


def test_commands_need_no_home(nameless, demo_repository, demo_model, tmp_path):
    image = demo_model.with_name("digit.jpg")
    assert "onnxruntime" in nameless("doctor")
    nameless("init", tmp_path / "project")
    assert (tmp_path / "project" / "compose.yaml").exists()
    assert "current" in nameless("versions", "digits", "--repository", demo_repository)
    nameless("edit", demo_model, "--batch", 1, "--out", tmp_path / "edited.onnx")
    nameless("watch", "digits", image, "--repository", demo_repository, "--json")
    assert "--api" in nameless("serve", "--help")
    # Completion has no place but there.
    assert "HOME" in nameless("--install-completion", "bash", code=1)


LOADING = """
import sys
from pathlib import Path
from tests.server.registries import serving
with serving((Path(sys.argv[1]),)) as registry:
    for entry in registry.index():
        print(entry.name, entry.state, entry.reason)
"""


def test_a_folder_that_may_not_be_read_fails_its_model_alone(nameless, tmp_path):
    for name in ("open", "shut", "half"):
        adder(tmp_path, name)
    for denied in (tmp_path / "shut", tmp_path / "half" / "1"):
        denied.chmod(0)
    try:
        found = nameless(tmp_path, program=("-c", LOADING))
        assert "open READY" in found
        assert "shut UNAVAILABLE shut cannot be read: Permission denied" in found
        assert "half UNAVAILABLE half/1 cannot be read: Permission denied" in found
        shown = nameless("inspect", tmp_path)
        assert "open" in shown
        assert "shut 1 cannot be opened" in shown
    finally:
        for denied in (tmp_path / "shut", tmp_path / "half" / "1"):
            denied.chmod(0o700)


LINUX = pytest.mark.skipif(
    sys.platform != "linux", reason="calls of libraries are watched as on Linux"
)
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


@LINUX
def test_the_watch_sees_what_python_looks_up(environment, tmp_path):
    asking = "import socket\ntry: socket.create_connection(('fovea.invalid', 9))\nexcept OSError: 0"
    subprocess.run([sys.executable, "-c", asking], env=environment, check=True)
    assert _done(tmp_path)[0] == "getaddrinfo fovea.invalid\n"


@LINUX
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
