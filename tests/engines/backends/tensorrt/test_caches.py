"""What is remembered from build to build: how long one took, and how fast kernels were."""

import json
from pathlib import Path

import pytest

from fovea_engines.backends.tensorrt.caches import (
    duration,
    last_duration,
    record_duration,
    timing_cache,
    timing_cache_file,
    write_whole,
)
from fovea_engines.backends.tensorrt.runtime import RTX, load_runtime

KEY = "0123abcd fp16 NVIDIA L4 tensorrt 11.4.0.106 level 3"


@pytest.fixture
def builds(tmp_path) -> Path:
    return tmp_path / "not there yet" / "builds.json"


def test_a_build_is_remembered(builds):
    assert last_duration(builds, KEY) is None
    record_duration(builds, KEY, 192.34)
    assert last_duration(builds, KEY) == 192.3
    record_duration(builds, KEY, 200)
    assert last_duration(builds, KEY) == 200
    assert last_duration(builds, KEY + " other") is None


def test_it_stays_small_and_keeps_the_newest(builds):
    keys = [str(number) for number in range(300)]
    write_whole(builds, json.dumps(dict.fromkeys(keys, 1)).encode())
    record_duration(builds, KEY, 2)
    assert last_duration(builds, KEY) == 2
    assert last_duration(builds, keys[0]) == 1
    assert last_duration(builds, keys[-1]) is None
    assert len(json.loads(builds.read_bytes())) == 256


@pytest.mark.parametrize("damage", [b"", b"{", b"[1]", b"null", b'[{"key": {}}]', b"\xff"])
def test_a_damaged_file_is_begun_anew(builds, damage):
    record_duration(builds, KEY, 1)
    builds.write_bytes(damage)
    assert last_duration(builds, KEY) is None
    record_duration(builds, KEY, 2)
    assert last_duration(builds, KEY) == 2


def test_a_build_never_fails_of_it(tmp_path):
    (tmp_path / "file").write_text("")
    builds = tmp_path / "file" / "builds.json"
    record_duration(builds, KEY, 1)
    assert last_duration(builds, KEY) is None


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


def test_timings_that_tensorrt_does_not_give_are_not_kept(tmp_path):
    class Nothing:
        def create_timing_cache(self, blob):
            return self

        def set_timing_cache(self, timing_cache, ignore_mismatch):
            return True

        def serialize(self):
            return None

    with timing_cache(Nothing(), tmp_path / "cache"):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.filterwarnings("ignore:.*Timing cache operations are no-ops:DeprecationWarning")
def test_timings_of_a_failed_build_are_not_kept(runtime, tmp_path):
    config = runtime.builder().create_builder_config()
    with pytest.raises(KeyboardInterrupt), timing_cache(config, tmp_path / "cache"):
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []
