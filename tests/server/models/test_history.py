"""The version that answers requests which name none, as the history of the model has it."""

import json
import os
import shutil

import pytest
from tests.server.registries import ADDER_CONFIG, adder, answer, chain, serving, wait_until

from fovea_engines.repository.history import HISTORY_FILE, History
from fovea_engines.repository.repository import ModelRepository
from fovea_preprocess.errors import InvalidModel, InvalidRequest, NotFound

ALL = ADDER_CONFIG + "version_policy { all { } }"


def event(action, version, previous, **more):
    return {"at": "2026-11-27T12:00:00+00:00", "action": action, "version": version,
            "previous": previous, **more}  # fmt: skip


def wrote(model, *events):
    with (model / HISTORY_FILE).open("a") as file:
        file.writelines(json.dumps(each) + "\n" for each in events)


@pytest.fixture
def model(tmp_path):
    for version in (1, 2, 3):
        folder = adder(tmp_path / "r", "plus", version=version, add=version, config=ADDER_CONFIG)
    return folder


def now(registry, name="plus"):
    return answer(registry.find(name))


def test_each_event_leads_to_the_next_state(model):
    steps = [
        (("promote", 1, 3), (1, (3,), None)),
        (("canary", 2, 1), (1, (3,), 2)),
        (("canary_failed", 2, 1), (1, (3,), None)),
        (("canary", 2, 1), (1, (3,), 2)),
        (("rollback", 1, 2), (1, (3,), None)),
        (("canary", 2, 1), (1, (3,), 2)),
        (("canary_passed", 2, 1), (2, (3, 1), None)),
        (("rollback", 1, 2), (1, (3,), None)),
        (("rollback", 3, 1), (3, (), None)),
    ]
    for step, (current, earlier, canary) in steps:
        wrote(model, event(*step))
        found = History.read(model)
        running = found.canary and found.canary["version"]
        assert (found.current, found.earlier, running) == (current, earlier, canary), step
    assert len(found.events) == len(steps)


def test_a_rollback_skips_a_version_whose_canary_was_withdrawn(model):
    steps = [
        (("promote", 1, 3), 3),
        (("promote", 2, 1), 1),
        (("promote", 3, 2), 2),
        (("canary", 2, 3), 2),
        (("canary_failed", 2, 3), 1),
        # A second canary of it passes.
        (("canary", 2, 3), 1),
        (("canary_passed", 2, 3), 3),
        (("promote", 3, 2), 2),
        (("canary", 2, 3), 2),
        (("rollback", 3, 2), 1),
        (("rollback", 1, 3), 3),
        (("rollback", 3, 1), None),
    ]
    for step, target in steps:
        wrote(model, event(*step))
        found = History.read(model)
        assert found.rollback_target(found.current) == target, step


def test_a_build_leaves_the_newest_current_and_is_a_way_back(model):
    wrote(model, event("promote", 2, 1, built=True))
    assert (History.read(model).current, History.read(model).earlier) == (None, (1,))
    wrote(model, event("rollback", 1, 2))
    wrote(model, event("promote", 3, 2, built=True))
    assert (History.read(model).current, History.read(model).earlier) == (1, ())


def test_what_is_built_waits_for_the_next_start_also_if_another_version_is_loaded(model):
    with serving(model.parent) as registry:
        adder(model.parent, "plus", version=4, add=4)
        wrote(model, event("promote", 4, 3, built=True))
        assert registry.follow("plus")
        assert (now(registry), registry.versions("plus")) == (3, (3,))
        assert registry.list_unloaded("plus") == [1, 2, 4]
        with pytest.raises(NotFound, match="version 1"):
            registry.get("plus", 1)
        with pytest.raises(NotFound, match="9"):
            registry.load_version("plus", 9)
        for version in (1, 4):
            registry.load_version("plus", version)
        # They are asked by number alone.
        assert (now(registry), registry.versions("plus")) == (3, (1, 3, 4))
        assert answer(registry.find("plus", 4)) == 4
        wrote(model, event("promote", 2, 3))
        assert registry.follow("plus")
        assert (now(registry), registry.versions("plus")) == (2, (1, 2, 3, 4))
        registry.unload_version("plus", 4)
        assert (now(registry), registry.versions("plus")) == (2, (1, 2, 3))
        with pytest.raises(NotFound, match="version 4"):
            registry.unload_version("plus", 4)
        for version in (2, 3):
            # The current one, and the one before.
            with pytest.raises(InvalidRequest, match=f"version {version} of model 'plus' stays"):
                registry.unload_version("plus", version)
        registry.load_version("plus", 4)
        assert answer(registry.find("plus", 4)) == 4


def test_a_torn_line_is_not_read_and_a_wrong_one_is_named(model):
    wrote(model, event("promote", 2, 3))
    path = model / HISTORY_FILE
    whole = path.read_bytes()
    for cut in (b'{"at": "2026', b"\0" * 40):
        path.write_bytes(whole + cut)
        assert History.read(model).current == 2
    last = whole.splitlines()[0]
    wrongs = [b"what?\n", b"[1]\n", b'{"action": "promote"}\n', b'{"action": "x"}\n']
    wrongs += [b"[" * 100_000 + b"\n", last.replace(b'"version": 2', b'"version": 1e999') + b"\n"]
    wrongs += [last.replace(b"2026-11-27T12:00:00+00:00", b"yesterday") + b"\n"]
    for wrong in wrongs:
        path.write_bytes(whole + wrong)
        with pytest.raises(InvalidModel, match="line 2"):
            History.read(model)
    path.unlink()
    path.mkdir()
    with pytest.raises(InvalidModel):
        History.read(model)


def test_the_promoted_version_answers_after_a_start_and_a_new_one_does_not(model):
    wrote(model, event("promote", 2, 3))
    assert ModelRepository(model.parent).served("plus") == (3, 2)
    with serving(model.parent, model_control_mode="explicit", load_model=["*"]) as registry:
        assert now(registry) == 2
        assert registry.versions("plus") == (2, 3)
        assert registry.get("plus").version == 2
        adder(model.parent, "plus", version=4, add=4)
        registry.load("plus")
        assert (now(registry), answer(registry.find("plus", 4))) == (2, 4)
        current = {entry.version: entry.current for entry in registry.index()}
        assert current == {"2": True, "3": False, "4": False}


def test_a_history_that_changes_loads_no_engine_again(model):
    chain(model.parent, "twice", "plus", "plus")
    (model / "config.pbtxt").write_text(ALL)
    with serving(model.parent) as registry:
        before = [registry.find("plus", version) for version in (1, 2, 3)]
        assert now(registry, "twice") == 6
        for step, version in ((("promote", 1, 3), 1), (("rollback", 3, 1), 3)):
            wrote(model, event(*step))
            assert registry.follow("plus")
            assert registry.find("plus").version == version
            # Models of an ensemble follow, too.
            assert now(registry, "twice") == 2 * version
        assert [registry.find("plus", version) for version in (1, 2, 3)] == before


def test_what_was_read_before_a_promotion_does_not_undo_it(model):
    """A poll has read the folder, and is slower than the promotion."""
    with serving(model.parent) as registry:
        before = registry._loader.read("plus")
        assert registry.follow("plus", 1)
        # Nor does it unload what is about to be promoted.
        registry._loader.load("plus", registry._loader.read("plus"))
        assert registry.versions("plus") == (1, 3)
        assert registry.follow("plus")
        assert registry.versions("plus") == (3,)
        wrote(model, event("promote", 1, 3))
        assert registry.follow("plus")
        registry._loader.load("plus", before)
        assert now(registry) == 1


def test_the_version_before_stays_loaded_and_a_canary_answers_nobody_by_itself(model):
    with serving(model.parent) as registry:
        wrote(model, event("canary", 1, 3, share=0.1))
        assert registry.follow("plus")
        assert (now(registry), registry.versions("plus")) == (3, (1, 3))
        wrote(model, event("canary_passed", 1, 3))
        assert registry.follow("plus")
        wrote(model, event("promote", 2, 1))
        assert registry.follow("plus")
        assert (now(registry), registry.versions("plus")) == (2, (1, 2, 3))


def test_a_version_that_cannot_be_loaded_hides_none_that_was_promoted(model):
    wrote(model, event("promote", 2, 3))
    (model / "3" / "model.onnx").write_bytes(b"no model")
    with serving(model.parent) as registry:
        assert registry.reason == ""
        assert now(registry) == 2
        [entry] = registry.index()
        assert "the last reload failed: version 3" in entry.reason
        (model / "1" / "model.onnx").write_bytes(b"no model")
        wrote(model, event("promote", 1, 2))
        with pytest.raises(InvalidModel, match="version 1 is at UNAVAILABLE state"):
            registry.follow("plus")
        assert now(registry) == 2


@pytest.mark.parametrize("broken", [False, True])
def test_without_the_promoted_version_the_newest_answers_and_the_reason_is_told(model, broken):
    wrote(model, event("promote", 2, 3))
    if broken:
        (model / "2" / "model.onnx").write_bytes(b"no model")
    else:
        shutil.rmtree(model / "2")
    with serving(model.parent) as registry:
        assert now(registry) == 3
        [entry] = registry.index()
        assert ("version 2 was promoted, but its folder is missing" in entry.reason) is not broken


def test_polls_follow_and_a_damaged_history_changes_nothing(model):
    poll = {"model_control_mode": "poll", "repository_poll_secs": 0.1}
    with serving(model.parent, **poll) as registry:
        wrote(model, event("promote", 1, 3))
        wait_until(lambda: now(registry) == 1)
        with (model / HISTORY_FILE).open("a") as file:
            file.write("what?\n")
        wait_until(
            lambda: any("not a valid event" in (each.reason or "") for each in registry.index())
        )
        assert now(registry) == 1
        os.truncate(model / HISTORY_FILE, 0)
        wait_until(lambda: now(registry) == 3)
