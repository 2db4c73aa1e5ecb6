"""A folder that has what an S3 store has."""

import threading

import pytest
from tests.stores import Bucket

from fovea_server.stores.address import Address
from fovea_server.stores.mirror import Mirror

GO = threading.Event()


@pytest.fixture(scope="module")
def store():
    bucket = Bucket()
    yield bucket
    bucket.stop()


@pytest.fixture
def bucket(store, monkeypatch):
    for name, value in store.variables.items():
        monkeypatch.setenv(name, value)
    yield store
    store.remove("")


@pytest.fixture
def make(bucket, tmp_path):
    def made(most_bytes=1 << 30, **given):
        return Mirror(Address.parse(bucket.address), tmp_path / "cache", most_bytes, **given)

    return made


def content(mirror):
    """Path below the folder that is served -> bytes."""
    files = (p for name in mirror.root.iterdir() for p in name.rglob("*") if p.is_file())
    return {p.relative_to(mirror.root).as_posix(): p.read_bytes() for p in files}


def kept(mirror):
    return {p.name: p.stat().st_mtime_ns for p in (mirror.root.parent / "files").iterdir()}
