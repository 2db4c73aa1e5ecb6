"""Ensembles: how their tensors flow, and what they make of models that change."""

import pytest
from tests.server.registries import ADDER_CONFIG, adder, answer, chain, serving

from fovea_preprocess.errors import InvalidModel, InvalidRequest, NotFound
from fovea_server.models.config.config import load_config

EXPLICIT = {"model_control_mode": "explicit", "load_model": ("*",)}


@pytest.fixture
def repository(tmp_path):
    adder(tmp_path, "plus", add=5, config=ADDER_CONFIG)
    adder(tmp_path, "other", config=ADDER_CONFIG)
    chain(tmp_path, "both", "plus", "other")
    chain(tmp_path, "all", "both", "other")
    return tmp_path


def states(registry):
    return {entry.name: (entry.state, entry.reason) for entry in registry.index()}


def test_an_ensemble_follows_the_models_that_it_runs(repository):
    with serving(repository, **EXPLICIT) as registry:
        before = registry.find("both"), registry.find("all")
        adder(repository, "plus", add=50)
        registry.load("plus")
        assert answer(registry.find("all")) == 52
        # What was kept of its answers was of the old one.
        assert registry.find("both") is not before[0]
        assert registry.find("all") is not before[1]
        now = registry.find("all")
        registry.load("plus")
        assert registry.find("all") is now, "nothing has changed"


def test_an_ensemble_whose_models_do_not_fit_any_more_says_so(repository):
    with serving(repository, **EXPLICIT) as registry:
        adder(repository, "plus", shape=("N", 5), config="max_batch_size: 8")
        registry.load("plus")
        state, reason = states(registry)["both"]
        assert state == "UNAVAILABLE"
        assert "ensemble tensor X: inconsistent shape" in reason
        state, reason = states(registry)["all"]
        assert state == "UNAVAILABLE"
        assert "depends on 'both' which has no loaded version" in reason
        with pytest.raises(NotFound, match="'all' has no available versions"):
            registry.find("all")
        assert registry.ready, "it was asked for"
        adder(repository, "plus", add=7, config=ADDER_CONFIG)
        registry.load("plus")
        assert answer(registry.find("all")) == 9
        assert states(registry)["all"] == ("READY", None)


def test_a_reload_that_fails_is_told_of_what_is_served(repository):
    with serving(repository, **EXPLICIT) as registry:
        text = (repository / "both" / "config.pbtxt").read_text()
        (repository / "both" / "config.pbtxt").write_text(text.replace('"plus"', '"nope"'))
        with pytest.raises(InvalidRequest, match="not available or ambiguous: nope"):
            registry.load("both")
        assert answer(registry.find("all")) == 7
        state, reason = states(registry)["both"]
        assert state == "READY"
        assert reason.startswith("the last reload failed: ensemble 'both' contains models")


def test_what_an_ensemble_runs_is_loaded_with_it_and_unloaded_if_nobody_else_wants_it(repository):
    with serving(repository, model_control_mode="explicit", load_model=("other",)) as registry:
        registry.load("both")
        assert answer(registry.find("both")) == 6
        registry.unload("both")
        assert registry.versions("plus") == (1,)
        registry.load("both")
        registry.unload("both", dependents=True)
        assert registry.versions("plus") == ()
        assert registry.versions("other") == (1,), "it was asked for by its name"


def test_an_ensemble_goes_and_comes_back_with_what_it_runs(repository):
    with serving(repository, **EXPLICIT) as registry:
        registry.unload("plus")
        assert registry.versions("both") == ()
        assert registry.ready, "it was asked for"
        registry.load("plus")
        assert answer(registry.find("both")) == 6


def test_an_ensemble_cannot_come_to_run_itself(repository):
    chain(repository, "upper", "both", "plus")
    with serving(repository, **EXPLICIT) as registry:
        config = (repository / "both" / "config.pbtxt").read_text()
        (repository / "both" / "config.pbtxt").write_text(config.replace('"other"', '"upper"'))
        with pytest.raises(InvalidRequest, match="circular dependency between ensembles: upper"):
            registry.load("both")
        assert answer(registry.find("upper")) == 11


def flow(*steps):
    """An ensemble of X -> Y that runs these steps, each as (tensor it reads, tensor it writes)."""
    return "".join(
        f'''step {{ model_name: "plus" model_version: -1
            input_map {{ key: "X" value: "{read}" }}
            output_map {{ key: "Y" value: "{written}" }} }}'''
        for read, written in steps
    )


@pytest.mark.parametrize(
    ("steps", "told"),
    [
        ([("X", "q"), ("b", "a"), ("a", "b"), ("a", "Y")], "output 'Y' for ensemble 'e' is not"),
        ([("X", "Y"), ("b", "a"), ("a", "b")], "ensemble tensor 'a' is unused in ensemble 'e'"),
        ([("X", "Y"), ("X", "a")], "ensemble tensor 'a' is unused in ensemble 'e'"),
        ([("X", "a")], "ensemble output 'Y' for ensemble e' is not used"),
        ([("X", "Y"), ("X", "Y")], "'Y' can appear in an output map only once for ensemble 'e' st"),
        ([("X", "X"), ("X", "Y")], "ensemble input 'X' can not appear in an output map"),
        ([("Z", "Y")], "ensemble input 'X' for ensemble e' is not used"),
    ],
)
def test_a_tensor_is_written_once_before_it_is_read(tmp_path, steps, told):
    (tmp_path / "config.pbtxt").write_text(
        ADDER_CONFIG + f'platform: "ensemble" ensemble_scheduling {{ {flow(*steps)} }}'
    )
    with pytest.raises(InvalidModel) as refusal:
        load_config(tmp_path, "e")
    assert told in str(refusal.value)
