"""The grid of settings, and how a setting stands in config.pbtxt."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import fovea_server
from fovea_engines.build.build import build
from fovea_engines.build.plan import BuildPlan
from fovea_engines.progress import Progress
from fovea_engines.repository.card import CARD_FILE, EngineCard
from fovea_engines.repository.config_pbtxt import CONFIG_FILE, config_of, read_config
from fovea_engines.repository.model_config import ModelParameter, Specific
from fovea_engines.repository.model_config_scheduling import ModelDynamicBatching
from fovea_engines.repository.repository import ModelRepository
from fovea_server.models.opening import open_engine
from fovea_server.settings import Settings
from fovea_server.tune.candidates import build_candidates, find_candidates
from fovea_server.tune.setting import Setting, configured, grid, present
from fovea_server.tune.trials import Trials
from fovea_server.tune.writing import change, write

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
        config = configured(own, setting, served, candidate, cores=2, pin=setting.version)
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
    assert configured(config, setting, served, served, cores=2, pin=None) == config


def test_what_somebody_wrote_stays(found):
    served, other, *_ = found.candidates
    config = replace(
        config_of(served.card),
        parameters={"own": ModelParameter("1"), "NUM_STREAMS": ModelParameter("1")},
        dynamic_batching=ModelDynamicBatching(preserve_ordering=True, preferred_batch_size=(2, 8)),
    )
    tuned = configured(config, Setting(2, 2, 2, 4, 500), served, other, cores=2, pin=None)
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


def test_what_was_built_for_it_is_published_under_the_next_number(found, tmp_path):
    """The fourth candidate becomes version 2, as the second and third are not kept."""
    repository = ModelRepository(tmp_path / "repository")
    served, *_, last = found.candidates
    shutil.copytree(served.folder.parent, repository.root / "digits")
    options = {"cores": 2, "seconds": 0.2}
    folder = repository.root / "digits"
    with Trials(folder, found.candidates, DIGITS.parent, **options) as trials:
        setting = Setting(last.version, 1, 1, 4, 1000)
        run = trials.measure(setting, 2, False)
        assert (run.failure, run.setting) == (None, setting)
        assert run.rate > 0
        changed = change(repository, "digits", found.candidates, setting, trials)
    assert repository.versions("digits") == (1,)
    write(repository, "digits", changed)
    assert repository.versions("digits") == (1, changed.publish) == (1, 2)
    card = EngineCard.read(repository.folder("digits") / CARD_FILE)
    assert (card.backend, card.max_batch) == ("onnxruntime", 4)
    config = read_config(repository.root / "digits" / CONFIG_FILE)
    assert (config.threads, config.streams, config.max_batch_size) == (1, None, 4)
    assert (config.backend, config.version_policy) == ("onnxruntime", None)
    again = find_candidates(repository, "digits")
    assert [candidate.version for candidate in again.candidates] == [2, 1]
