"""What is remembered from build to build: how long one took, and how fast kernels were."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from fovea_engines.backends.tensorrt.caches import (
    BuildKey,
    Ledger,
    duration,
    timing_cache,
    timing_cache_file,
    write_whole,
)
from fovea_engines.backends.tensorrt.runtime import RTX, load_runtime

KEY = BuildKey("0123abcd", "fp16", "NVIDIA L4", "tensorrt 11.4.0.106", "level 3")


@pytest.fixture
def ledger(tmp_path) -> Ledger:
    return Ledger(tmp_path / "not there yet" / "builds.json")


def test_a_build_is_remembered(ledger):
    assert ledger.seconds(KEY) is None
    ledger.record(KEY, 192.34)
    assert Ledger(ledger.file).seconds(KEY) == 192.3
    ledger.record(KEY, 200)
    assert ledger.seconds(KEY) == 200


@pytest.mark.parametrize("field", ["model", "precision", "device", "version", "options"])
def test_another_build_is_not_taken_for_it(ledger, field):
    ledger.record(KEY, 1)
    assert ledger.seconds(replace(KEY, **{field: "other"})) is None


def test_it_stays_small_and_keeps_the_newest(ledger):
    keys = [replace(KEY, model=str(number)) for number in range(300)]
    write_whole(ledger.file, json.dumps([{"key": asdict(k), "seconds": 1} for k in keys]).encode())
    ledger.record(KEY, 2)
    assert ledger.seconds(KEY) == 2
    assert ledger.seconds(keys[0]) == 1
    assert ledger.seconds(keys[-1]) is None
    assert len(json.loads(ledger.file.read_bytes())) == 256


@pytest.mark.parametrize("damage", [b"", b"{", b"[1]", b"null", b'[{"key": {}}]', b"\xff"])
def test_a_damaged_file_is_begun_anew(ledger, damage):
    ledger.record(KEY, 1)
    ledger.file.write_bytes(damage)
    assert ledger.seconds(KEY) is None
    ledger.record(KEY, 2)
    assert ledger.seconds(KEY) == 2


def test_a_build_never_fails_of_it(tmp_path):
    (tmp_path / "file").write_text("")
    ledger = Ledger(tmp_path / "file" / "builds.json")
    ledger.record(KEY, 1)
    assert ledger.seconds(KEY) is None


def test_a_file_is_whole_or_as_before(tmp_path, monkeypatch):
    file = tmp_path / "file"
    write_whole(file, b"before")

    def fails(self, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fails)
    with pytest.raises(OSError, match="No space"):
        write_whole(file, b"after")
    assert file.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.4, "0 s"), (59.4, "59 s"), (60, "1 min 0 s"), (192.3, "3 min 12 s"), (7290, "2 h 1 min")],
)
def test_a_duration_is_said_in_words(seconds, said):
    assert duration(seconds) == said


@pytest.fixture
def runtime():
    return load_runtime(RTX)


def test_timings_are_kept_by_version_and_gpu(runtime, tmp_path):
    file = timing_cache_file(tmp_path, runtime, "NVIDIA RTX PRO 6000/Blackwell")
    assert file.parent == tmp_path
    assert runtime.version in file.name
    assert "NVIDIA-RTX-PRO-6000-Blackwell" in file.name
    assert timing_cache_file(tmp_path, runtime, "NVIDIA L4") != file


@pytest.mark.filterwarnings("ignore:.*Timing cache operations are no-ops:DeprecationWarning")
@pytest.mark.parametrize("before", [None, b"damaged"])
def test_timings_are_read_and_written(runtime, tmp_path, before):
    """With RTX's objects, which keep no timings but have TensorRT's calls."""
    file = tmp_path / "timings" / "cache"
    if before is not None:
        write_whole(file, before)
    builder = runtime.builder()
    for _ in range(2):
        config = builder.create_builder_config()
        with timing_cache(config, file):
            assert config.get_timing_cache() is not None
        assert len(file.read_bytes()) > len(before or b"")


@pytest.mark.filterwarnings("ignore:.*Timing cache operations are no-ops:DeprecationWarning")
def test_timings_of_a_failed_build_are_not_kept(runtime, tmp_path):
    config = runtime.builder().create_builder_config()
    with pytest.raises(KeyboardInterrupt), timing_cache(config, tmp_path / "cache"):
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []
