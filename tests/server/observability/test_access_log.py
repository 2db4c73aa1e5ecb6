"""The lines of requests, whatever clients send, while the log is read and while it is not."""

import contextlib
import fcntl
import json
import logging
import os
import re
import threading

import pytest

from fovea_server import logs
from fovea_server.logs import ServerLog
from fovea_server.observability.access_log import Access, AccessLog


@pytest.fixture
def log(logging_kept):
    """A log that tells INFO."""
    made = ServerLog()
    made.set_severities(made.severities, 0)
    return made


@contextlib.contextmanager
def unread(log: ServerLog, tmp_path):
    """The log goes to a pipe that is full after a page; reads all of it when called."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    end = os.open(path, os.O_RDWR)
    fcntl.fcntl(end, fcntl.F_SETPIPE_SZ, 4096)
    log.open(path)
    text = bytearray()

    def read() -> None:
        while b"the end" not in text:
            text.extend(os.read(end, 65536))

    def read_all() -> list[str]:
        reader = threading.Thread(target=read)
        reader.start()
        log.close()
        log.add(lambda: "the end\n", 8)
        reader.join()
        return text.decode().splitlines()[:-1]

    yield read_all
    os.close(end)


def access(path: str, model: str = "", method: str = "GET") -> Access:
    return Access("127.0.0.1", method, path, model, 200, 10, 0.0, "id")


@pytest.mark.parametrize("lines", ["default", "json"])
def test_whatever_a_client_names_is_cut(log, lines, tmp_path):
    log.format = lines
    log.open(tmp_path / "log")
    AccessLog(log).add(access("p" * 60_000, "m" * 1_000_000, "x" * 60_000), probe=False)
    log.close()
    line = (tmp_path / "log").read_text()
    assert len(line) < 8000
    if lines == "json":
        assert json.loads(line)["model"] == "m" * 1024 + "..."
    else:
        assert f" model='{'m' * 1024}...' status=200 " in line


def test_a_log_that_is_read_late_is_whole_and_in_order(log, tmp_path):
    requests, logger = AccessLog(log), logging.getLogger("fovea_server.test")
    with unread(log, tmp_path) as read_all:
        for number in range(500):
            requests.add(access(f"/{number}"), probe=False)
            logger.info("record %d", number)
        lines = read_all()
    assert [re.search(r"GET '/(\d+)'|record (\d+)", line)[0] for line in lines] == [
        text for number in range(500) for text in (f"GET '/{number}'", f"record {number}")
    ]


def test_what_waits_is_bounded_in_bytes_and_the_rest_is_counted(log, tmp_path, monkeypatch):
    monkeypatch.setattr(logs, "_MAX_WAITING", 100_000)
    requests = AccessLog(log)
    with unread(log, tmp_path) as read_all:
        for number in range(1000):
            requests.add(access(f"/{number}/{'p' * 60_000}"), probe=False)
        *lines, last = read_all()
    assert sum(len(line) + 1 for line in lines) <= 100_000
    assert len(lines) > 50
    (dropped,) = re.findall(r"WARNING fovea_server\.logs: (\d+) log lines were dropped", last)
    assert int(dropped) == 1000 - len(lines)
