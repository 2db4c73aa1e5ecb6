"""The grid of settings, and how a setting stands in config.pbtxt."""

from dataclasses import replace
from pathlib import Path

import pytest

import fovea_server
from fovea_engines.build.build import build
from fovea_engines.build.plan import BuildPlan
from fovea_engines.progress import Progress
from fovea_engines.repository.config_pbtxt import config_of
from fovea_engines.repository.model_config import ModelParameter, Specific
from fovea_engines.repository.model_config_scheduling import ModelDynamicBatching
from fovea_engines.repository.repository import ModelRepository
from fovea_server.models.opening import open_engine
from fovea_server.settings import Settings
from fovea_server.tune.candidates import build_candidates, find_candidates
from fovea_server.tune.setting import Setting, configured, grid, present

DIGITS = Path(fovea_server.__file__).parent / "demo" / "digits.onnx"


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Four candidates for the demo model, of which the first is served."""
    root = tmp_path_factory.mktemp("tune")
    plan = BuildPlan(source=DIGITS, name="digits", repository=root / "repository")
    build(plan)
    return build_candidates(
        find_candidates(ModelRepository(plan.repository), "digits"),
        replace(plan, repository=root / "scratch"),
        [("openvino", "fp32"), ("onnxruntime", "fp32")],
        [1, 4],
        2,
        Progress(),
    )


def test_missing_engines_are_built_and_numbered(found):
    assert [(c.version, c.title, c.max_batch) for c in found.candidates] == [
        (1, "openvino fp32", 1),
        (2, "openvino fp32", 4),
        (3, "onnxruntime fp32", 1),
        (4, "onnxruntime fp32", 4),
    ]
    assert found.left_out == []


def test_the_grid_has_what_goes_together(found):
    settings = grid(found.candidates, cores=4)
    assert len(set(settings)) == len(settings)
    assert {s.threads for s in settings} == {1, 2, 4}
    assert all(s.streams <= s.threads for s in settings)
    assert {s.max_batch for s in settings if s.version == 1} == {1}
    assert {s.max_batch for s in settings if s.version == 2} == {1, 2, 4}
    assert all(s.delay_us == 0 for s in settings if s.max_batch == 1)
    assert Setting(4, 4, 2, 4, 2000) in settings


def test_every_setting_can_be_written_read_and_opened(found, tmp_path):
    """Through the very code that serves: streams, batch and version are what was asked."""
    served, *_ = found.candidates
    own = config_of(served.card)
    for setting in (
        Setting(1, 2, 1, 1, 0),
        Setting(2, 2, 2, 2, 1000),
        Setting(3, 1, 1, 1, 0),
        Setting(4, 2, 2, 4, 0),
    ):
        candidate = found.candidates[setting.version - 1]
        config = configured(own, setting, served, candidate, cores=2, pin=True)
        assert config.version_policy is not None
        assert config.version_policy.specific == Specific((setting.version,))
        engine, config = open_engine(candidate.folder, config, Settings())
        with engine:
            assert present(config, candidate, cores=2) == setting
            assert engine.session.concurrency == setting.streams
            assert engine.rows == setting.max_batch


def test_the_present_setting_changes_nothing(found):
    served, *_ = found.candidates
    config = config_of(served.card)
    setting = present(config, served, cores=2)
    assert configured(config, setting, served, served, cores=2, pin=False) == config


def test_what_somebody_wrote_stays(found):
    served, other, *_ = found.candidates
    config = replace(
        config_of(served.card),
        parameters={"own": ModelParameter("1"), "NUM_STREAMS": ModelParameter("1")},
        dynamic_batching=ModelDynamicBatching(preserve_ordering=True, preferred_batch_size=(2, 8)),
    )
    tuned = configured(config, Setting(2, 2, 2, 4, 500), served, other, cores=2, pin=False)
    assert tuned.parameters == {"own": ModelParameter("1")}
    assert tuned.dynamic_batching == ModelDynamicBatching(
        preserve_ordering=True, preferred_batch_size=(2,), max_queue_delay_microseconds=500
    )
    assert tuned.version_policy is None


def test_only_what_was_built_of_the_same_counts(found, tmp_path):
    repository = ModelRepository(tmp_path)
    for labels in (tuple("0123456789"), tuple("abcdefghij")):
        build(BuildPlan(source=DIGITS, name="digits", repository=tmp_path, labels=labels))
    have = find_candidates(repository, "digits")
    assert [candidate.version for candidate in have.candidates] == [2]
    [reason] = have.left_out
    assert "version 1: it was built with other labels" in reason


@pytest.mark.parametrize("value", ["0", "-1", "two"])
def test_a_number_that_is_none_is_refused(found, value):
    served, *_ = found.candidates
    config = replace(config_of(served.card), parameters={"NUM_STREAMS": ModelParameter(value)})
    with pytest.raises(Exception, match=f"NUM_STREAMS is '{value}'"):
        open_engine(served.folder, config, Settings())


def test_auto_is_the_default(found):
    served, *_ = found.candidates
    parameters = dict.fromkeys(("NUM_STREAMS", "INFERENCE_NUM_THREADS"), ModelParameter("AUTO"))
    config = replace(config_of(served.card), parameters=parameters)
    assert (config.threads, config.streams) == (None, None)


def test_the_operators_cores_are_the_most(found):
    served, *_ = found.candidates
    parameters = {"INFERENCE_NUM_THREADS": ModelParameter("2")}
    config = replace(config_of(served.card), parameters=parameters)
    engine, _ = open_engine(served.folder, config, Settings(threads=1))
    with engine:
        assert engine.session.concurrency == 1
