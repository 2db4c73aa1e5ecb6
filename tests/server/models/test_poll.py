"""A repository that changes while it is followed."""

import os
import shutil

import pytest
from tests.server.registries import ADDER_CONFIG, adder, answer, chain, serving, wait_until

from fovea_engines.repository.card import CARD_FILE
from fovea_preprocess.errors import ModelNotReady, NotFound
from fovea_server.models import model

POLL = {"model_control_mode": "poll", "repository_poll_secs": 0.1}


@pytest.fixture
def repository(tmp_path):
    adder(tmp_path / "r", "plus", add=5, config=ADDER_CONFIG)
    adder(tmp_path / "r", "other", config=ADDER_CONFIG)
    return tmp_path / "r"


def is_served(registry, name):
    try:
        return bool(registry.find(name))
    except (NotFound, ModelNotReady):
        return False


def test_what_changes_is_followed_and_what_is_broken_is_served_as_it_was(repository):
    chain(repository, "both", "plus", "other")
    with serving(repository, **POLL) as registry:
        other = registry.find("other")
        adder(repository, "plus", version=2, add=7)
        wait_until(lambda: registry.versions("plus") == (2,))
        assert answer(registry.find("both")) == 8
        adder(repository, "new", add=1)
        wait_until(lambda: registry.versions("new") == (1,))
        for path in (repository / "new" / "1" / "model.onnx", repository / "new" / "1"):
            path.unlink() if path.is_file() else path.rmdir()
        wait_until(lambda: registry.versions("new") == ())
        (repository / "plus" / "config.pbtxt").write_text("what?")
        adder(repository, "newer", add=1)
        wait_until(lambda: registry.versions("newer") == (1,))
        assert answer(registry.find("plus")) == 7
        assert registry.find("other") is other
        assert registry.ready


def test_a_model_that_leaves_and_comes_back_as_it_was_is_served_again(repository, caplog):
    chain(repository, "both", "plus", "other")
    with serving(repository, **POLL) as registry:
        shutil.move(repository / "plus", repository.parent / "away")
        wait_until(lambda: not is_served(registry, "plus"))
        assert not is_served(registry, "both")
        assert registry.ready, "what is not there any more is not missed"
        for name in ("new", "newer"):
            adder(repository, name)
            wait_until(lambda name=name: is_served(registry, name))
        assert "both failed" not in caplog.text, "it is not tried before there is all of it"
        shutil.move(repository.parent / "away", repository / "plus")
        wait_until(lambda: is_served(registry, "both"))
        assert answer(registry.find("both")) == 6


def test_a_model_that_failed_and_is_taken_away_is_not_missed(repository):
    (repository / "plus" / "1" / "model.onnx").write_bytes(b"no model")
    with serving(repository, **POLL) as registry:
        assert not registry.ready
        shutil.rmtree(repository / "plus")
        wait_until(lambda: registry.ready)


def test_a_configuration_that_is_broken_for_a_while_leaves_no_trace(repository):
    config = repository / "plus" / "config.pbtxt"
    before, text = config.stat(), config.read_text()
    with serving(repository, **POLL) as registry:
        plus = registry.find("plus")
        config.write_text("what?")
        wait_until(lambda: any(entry.reason for entry in registry.index()))
        [entry] = [entry for entry in registry.index() if entry.name == "plus"]
        assert entry.state == "READY"
        assert entry.reason.startswith("the last reload failed: ")
        assert "is not a model configuration" in entry.reason
        config.write_text(text)
        os.utime(config, ns=(before.st_atime_ns, before.st_mtime_ns))
        wait_until(lambda: not any(entry.reason for entry in registry.index()))
        assert registry.find("plus") is plus
        chain(repository, "both", "plus", "other")
        wait_until(lambda: is_served(registry, "both"))
        assert registry.ready


def test_an_old_version_is_served_until_the_new_one_has_been_built_again(repository, monkeypatch):
    rejections = ["it was built for another GPU"]
    # An engine of another GPU is not at hand, nor a GPU to build it for.
    monkeypatch.setattr(model, "mismatch", lambda card: next(iter(rejections), None))
    with serving(repository, **POLL, rebuild=True) as registry:
        old = registry.find("plus")
        folder = repository / "plus" / "2"
        folder.mkdir()
        old.engine.card.write(folder / CARD_FILE)
        adder(repository, "plus", version=2, add=7)
        # Its rebuild fails, as the card is of another file.
        refused = "was changed after the build"
        wait_until(lambda: any(refused in (entry.reason or "") for entry in registry.index()))
        assert registry.find("plus") is old
        rejections.clear()
        (folder / CARD_FILE).unlink()
        adder(repository, "plus", version=2, add=8)
        wait_until(lambda: registry.versions("plus") == (2,))
        assert answer(registry.find("plus")) == 8


def test_an_ensemble_that_no_longer_fits_what_it_runs_is_served_as_it_was(repository):
    folder = chain(repository, "both", "plus", "other")
    with serving(repository, **POLL) as registry:
        both = registry.find("both")
        text = (folder / "config.pbtxt").read_text()
        (folder / "config.pbtxt").write_text(text.replace("max_batch_size: 8", "max_batch_size: 9"))
        wait_until(lambda: any(entry.reason for entry in registry.index()))
        adder(repository, "new")
        wait_until(lambda: is_served(registry, "new"))
        [entry] = [entry for entry in registry.index() if entry.name == "both"]
        assert "which only allows maximum batch size to be 8" in entry.reason
        assert registry.find("both") is both


def test_links_that_lead_nowhere_or_round_in_circles_change_nothing(repository):
    (repository / "plus" / "gone").symlink_to("nowhere")
    (repository / "plus" / "self").symlink_to("self")
    (repository / "plus" / "up").symlink_to("..")
    (repository / "other" / "2").symlink_to(repository / "plus" / "1")
    with serving(repository, **POLL) as registry:
        assert registry.reason == ""
        assert answer(registry.find("plus")) == 5
        assert answer(registry.find("other", 2)) == 5


def test_the_hidden_files_of_a_mac_change_nothing(repository):
    with serving(repository, **POLL) as registry:
        before = registry.find("plus")
        for name in (".DS_Store", "._config.pbtxt", "._1"):
            (repository / "plus" / name).write_bytes(b"\0\5\x16\7")
        # Once this one is served, the other was looked at.
        adder(repository, "new")
        wait_until(lambda: is_served(registry, "new"))
        assert registry.find("plus") is before


def test_one_look_that_goes_wrong_does_not_end_the_others(repository, monkeypatch, caplog):
    with serving(repository, **POLL) as registry:
        with monkeypatch.context() as broken:
            broken.delattr("fovea_server.models.loader.Loader.read")
            wait_until(lambda: "could not be polled" in caplog.text)
        adder(repository, "new", add=3)
        wait_until(lambda: is_served(registry, "new"))
