"""The grid of settings, and how a setting stands in config.pbtxt."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from tests.built import build

import fovea_server
from fovea_engines.build.plan import BuildPlan
from fovea_engines.progress import Progress
from fovea_engines.repository.config_pbtxt import config_of
from fovea_engines.repository.model_config import ModelParameter, Specific
from fovea_engines.repository.model_config_scheduling import ModelDynamicBatching
from fovea_engines.repository.repository import ModelRepository
from fovea_server.bench.tune.candidates import BuiltVersion, find_candidates
from fovea_server.bench.tune.setting import Setting, configure, grid, present_setting
from fovea_server.bench.tune.trials import Trials
from fovea_server.models.opening import open_engine
from fovea_server.settings import Settings

pytestmark = pytest.mark.slow

DIGITS = Path(fovea_server.__file__).parent / "demo" / "digits.onnx"


CORES = 2


@pytest.fixture(scope="module")
def folder(demo_versions):
    """The demo model built for both backends of the CPU; the second is served."""
    return demo_versions / "digits"


@pytest.fixture(scope="module")
def found(folder):
    candidates, left_out = find_candidates(ModelRepository(folder.parent), "digits")
    assert left_out == []
    return candidates


@pytest.fixture
def on_gpu(found):
    """A card as a TensorRT engine has it; nothing is opened."""
    card = replace(found[1].card, backend="tensorrt", precision="fp16", max_batch=8)
    return BuiltVersion(3, card)


def test_versions_that_agree_are_found_and_the_served_one_is_first(found):
    assert [(c.version, c.title) for c in found] == [(2, "openvino fp32"), (1, "onnxruntime fp32")]


def test_images_on_a_cpu_are_not_batched_so_no_batch_is_tried(found):
    large = [BuiltVersion(c.version, replace(c.card, max_batch=8)) for c in found]
    settings = grid(large, cores=4)
    assert len(set(settings)) == len(settings) == 2 * 6
    assert {(s.threads, s.streams) for s in settings} == {
        *((1, 1), (2, 1), (2, 2), (4, 1), (4, 2), (4, 4))
    }
    assert {(s.max_batch, s.delay_us) for s in settings} == {(0, 0)}


def test_batches_and_delays_are_tried_on_a_gpu(on_gpu):
    settings = grid([on_gpu], cores=4)
    assert {s.threads for s in settings} == {0}
    assert {s.max_batch for s in settings} == {1, 2, 4, 8}
    assert {s.delay_us for s in settings if s.max_batch == 1} == {0}
    assert Setting(3, 0, 3, 8, 2000) in settings


def test_every_setting_can_be_written_read_and_opened(found, folder):
    """Through the very code that serves: streams and version are what was asked."""
    served = found[0]
    own = config_of(served.card)
    for candidate in found:
        for setting in grid([candidate], CORES):
            config = configure(own, setting, served, candidate, CORES, pin=True)
            assert config.version_policy is not None
            assert config.version_policy.specific == Specific((setting.version,))
            assert config.max_batch_size == config_of(candidate.card).max_batch_size
            engine, config = open_engine(
                folder / str(setting.version), config, Settings(), Progress()
            )
            with engine:
                assert present_setting(config, candidate, CORES) == setting
                assert engine.session.concurrency == setting.streams


def test_a_setting_of_a_gpu_can_be_written_and_read(found, on_gpu):
    for setting in grid([on_gpu], CORES):
        config = configure(config_of(found[0].card), setting, found[0], on_gpu, CORES, pin=False)
        assert config.backend == "tensorrt"
        assert present_setting(config, on_gpu, CORES) == setting


def test_the_present_setting_changes_nothing(found):
    served = found[0]
    config = replace(
        config_of(served.card),
        max_batch_size=4,
        dynamic_batching=ModelDynamicBatching(max_queue_delay_microseconds=700),
    )
    setting = present_setting(config, served, CORES)
    assert configure(config, setting, served, served, CORES, pin=False) == config


def test_what_somebody_wrote_stays(found, on_gpu):
    config = replace(
        config_of(found[0].card),
        parameters={"own": ModelParameter("1"), "NUM_STREAMS": ModelParameter("1")},
        dynamic_batching=ModelDynamicBatching(preserve_ordering=True, preferred_batch_size=(2, 8)),
    )
    tuned = configure(config, Setting(3, 0, 0, 4, 500), found[0], on_gpu, CORES, pin=False)
    assert tuned.parameters == {"own": ModelParameter("1")}
    assert tuned.dynamic_batching == ModelDynamicBatching(
        preserve_ordering=True, preferred_batch_size=(2,), max_queue_delay_microseconds=500
    )
    assert tuned.version_policy is None


def test_only_what_was_built_of_the_same_counts(folder, tmp_path):
    other = BuildPlan(DIGITS, "digits", tmp_path, "onnxruntime", labels=tuple("abcdefghij"))
    shutil.copytree(folder / "1", tmp_path / "digits" / "1")
    build(other)
    candidates, [reason] = find_candidates(ModelRepository(tmp_path), "digits")
    assert [candidate.version for candidate in candidates] == [2]
    assert "version 1: it was built with different labels" in reason


def test_a_version_of_several_sizes_is_beside_that_of_one(folder, demo_rect, tmp_path):
    shutil.copytree(folder / "1", tmp_path / "digits" / "1")
    shutil.copytree(demo_rect / "digits" / "1", tmp_path / "digits" / "2")
    candidates, left_out = find_candidates(ModelRepository(tmp_path), "digits")
    assert left_out == []
    assert [each.title for each in candidates] == ["onnxruntime fp32 rect", "onnxruntime fp32"]


@pytest.mark.parametrize("value", ["0", "-1", "two"])
def test_a_number_that_is_none_is_refused(found, folder, value):
    served = found[0]
    config = replace(config_of(served.card), parameters={"NUM_STREAMS": ModelParameter(value)})
    with pytest.raises(Exception, match=f"NUM_STREAMS is '{value}'"):
        open_engine(folder / str(served.version), config, Settings(), Progress())


def test_auto_is_the_default(found):
    served = found[0]
    parameters = dict.fromkeys(("NUM_STREAMS", "INFERENCE_NUM_THREADS"), ModelParameter("AUTO"))
    config = replace(config_of(served.card), parameters=parameters)
    assert (config.threads, config.streams) == (None, None)


def test_the_operators_cores_are_the_most(found, folder):
    served = found[0]
    parameters = {"INFERENCE_NUM_THREADS": ModelParameter("2")}
    config = replace(config_of(served.card), parameters=parameters)
    engine, _ = open_engine(folder / str(served.version), config, Settings(threads=1), Progress())
    with engine:
        assert engine.session.concurrency == 1


def test_another_version_is_served_and_measured(found, folder):
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    with Trials(folder, found, DIGITS.parent, cores=CORES, seconds=0.2) as trials:
        for candidate in found:
            setting = Setting(candidate.version, 1, 1, 0, 0)
            run = trials.measure(setting, 2, False)
            assert (run.failure, run.setting) == (None, setting)
            assert run.rate > 0
        texts = [trials.text(Setting(c.version, 1, 1, 0, 0)) for c in found]
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    assert not any("version_policy" in text for text in texts)
    assert "onnxruntime" in texts[1]
