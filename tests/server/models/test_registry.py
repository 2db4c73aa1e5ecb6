"""What a registry makes of a repository at its start."""

import fcntl
import signal
from contextlib import contextmanager

import onnx
import pytest
from onnx import TensorProto, helper
from tests.server.registries import ADDER_CONFIG, adder, answer, chain, serving, wait_until

from fovea_preprocess.errors import InvalidOption, LoadFailed, ModelNotReady, NotFound
from fovea_server.models.model import State
from fovea_server.models.registry import Registry
from fovea_server.models.slot import IndexEntry
from fovea_server.settings import Settings

pytestmark = pytest.mark.slow


def test_every_recorded_model_is_served(shared):
    models = shared / "data" / "triton" / "models"
    with serving(models) as registry:
        assert registry.reason == ""
        assert [entry.name for entry in registry.index()] == sorted(
            p.name for p in models.iterdir()
        )
        assert {entry.state for entry in registry.index()} == {"READY"}


def test_the_newest_version_is_served_and_odd_folders_are_no_versions(tmp_path):
    for version in (1, 3):
        adder(tmp_path, "plus", version=version, add=version)
    for odd in ("02", "x"):
        (tmp_path / "plus" / odd).mkdir()
    with serving(tmp_path) as registry:
        assert registry.versions("plus") == (3,)
        assert answer(registry.find("plus")) == 3
        with pytest.raises(NotFound) as refusal:
            registry.find("plus", 9)
        assert str(refusal.value) == "Request for unknown model: 'plus' version 9 is not found"
        with pytest.raises(NotFound) as refusal:
            registry.find("nope")
        assert str(refusal.value) == "Request for unknown model: 'nope' is not found"
        with pytest.raises(NotFound, match="'nope'"):
            registry.get("nope")
        with pytest.raises(NotFound, match="'plus'"):
            registry.get("pluss")


def test_what_is_far_too_large_fails_alone_and_says_what(tmp_path, caplog):
    adder(tmp_path, "plus")
    side = 1 << 20
    pool = helper.make_node("GlobalAveragePool", ["images"], ["output0"])
    given = helper.make_tensor_value_info("images", TensorProto.FLOAT, [1, 3, side, side])
    made = helper.make_tensor_value_info("output0", TensorProto.FLOAT, [1, 3, 1, 1])
    giant = helper.make_model(
        helper.make_graph([pool], "giant", [given], [made]),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    (tmp_path / "giant" / "1").mkdir(parents=True)
    onnx.save(giant, tmp_path / "giant" / "1" / "model.onnx")
    adder(tmp_path, "wordy", config="# a comment\n" * 30_000)
    with serving(tmp_path) as registry:
        assert answer(registry.find("plus")) == 1
        told = registry.reason
    assert "input of 1048576 x 1048576 pixels" in told
    assert "has 351.6 KiB, but a configuration can have at most 256 KiB" in told
    assert "Traceback" not in caplog.text


@contextmanager
def unreadable_for_now(file):
    """Nobody can open the file meanwhile: whoever tries waits, as for a disk that hangs."""
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)
    with file.open("rb+") as held:
        fcntl.fcntl(held, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        yield
    signal.signal(signal.SIGIO, before)


def test_a_file_that_is_read_slowly_holds_up_no_other_model(tmp_path):
    stuck = adder(tmp_path, "all-first", config=ADDER_CONFIG) / "config.pbtxt"
    for name in ("other", "plus"):
        adder(tmp_path, name)
    registry = Registry(Settings(model_repository=tmp_path))
    try:
        with unreadable_for_now(stuck):
            registry.start()
            wait_until(lambda: registry.versions("plus") and registry.versions("other"))
            assert answer(registry.find("plus")) == 1
            assert not registry.ready
            with pytest.raises(ModelNotReady):
                registry.find("all-first")
        wait_until(lambda: registry.ready)
    finally:
        registry.close()


def test_nothing_is_missing_until_the_repository_was_read(tmp_path):
    """A proxy asks another server then, and would pass a 404 on."""
    adder(tmp_path, "plus")
    registry = Registry(Settings(model_repository=(tmp_path,)))
    try:
        for look_up in (registry.get, registry.find):
            with pytest.raises(ModelNotReady, match="'plus'"):
                look_up("plus")
    finally:
        registry.close()


@pytest.mark.parametrize(
    ("policy", "served"),
    [
        ("all {}", (1, 2, 10)),
        ("latest { num_versions: 2 }", (2, 10)),
        ("specific { versions: [1, 10, 7] }", (1, 10)),
    ],
)
def test_versions_are_served_side_by_side(tmp_path, policy, served):
    for version in (1, 2, 10):
        adder(tmp_path, "plus", version=version, add=version)
    (tmp_path / "plus" / "config.pbtxt").write_text(f"version_policy {{ {policy} }}")
    with serving(tmp_path) as registry:
        assert registry.versions("plus") == served
        assert [answer(registry.find("plus", version)) for version in served] == list(served)


def test_a_policy_that_names_nothing_is_told(tmp_path):
    adder(tmp_path, "plus", config="version_policy { specific { versions: [4] } }")
    with serving(tmp_path) as registry:
        policy = "at least one version must be available under the version policy of model 'plus'"
        fault = f"{policy}: there are 1"
        assert registry.reason == f"plus: {fault}"
        with pytest.raises(ModelNotReady, match=fault):
            registry.get("plus")
        assert registry.index() == [IndexEntry("plus", None, "UNAVAILABLE", fault)]


def test_one_model_that_is_broken_does_not_keep_others_from_being_served(tmp_path):
    adder(tmp_path, "good")
    adder(tmp_path, "text", config="max_batch_size: many")
    adder(tmp_path, "bytes")
    (tmp_path / "bytes" / "1" / "model.onnx").write_bytes(b"no model")
    with serving(tmp_path) as registry:
        assert answer(registry.find("good")) == 1
        assert not registry.ready
        assert "text: " in registry.reason
        assert "is not a model configuration" in registry.reason
        assert registry.get("bytes").state is State.UNAVAILABLE
        entries = {entry.name: entry for entry in registry.index()}
        assert (entries["text"].version, entries["text"].state) == (None, "UNAVAILABLE")
        assert entries["text"].reason is not None
        assert "config.pbtxt is not a model configuration: line 1, column" in entries["text"].reason
        assert (entries["bytes"].version, entries["bytes"].state) == ("1", "UNAVAILABLE")
        assert "is not an ONNX model" in (entries["bytes"].reason or "")
        assert [entry.name for entry in registry.index(ready=True)] == ["good"]
    with serving(tmp_path, strict_readiness=False) as registry:
        assert registry.ready


def test_ensembles_are_served_after_what_they_run(tmp_path):
    adder(tmp_path, "zone", add=2, config=ADDER_CONFIG)
    adder(tmp_path, "zero", add=3, config=ADDER_CONFIG)
    chain(tmp_path, "both", "zone", "zero")
    chain(tmp_path, "all", "both", "zone")
    with serving(tmp_path) as registry:
        assert registry.reason == ""
        assert answer(registry.find("all")) == 7


@pytest.mark.parametrize(
    ("models", "told"),
    [
        ({"max_batch": 16}, "which only allows maximum batch size to be 8"),
        ({"version": 7}, "depends on 'plus' whose required version 7 is not loaded."),
        ({"models": ("nope",)}, "contains models that are not available or ambiguous: nope"),
        (
            {"models": ("both",)},
            "circular dependency between ensembles: both -> ... -> both -> both",
        ),
        ({"models": ("broken",)}, "depends on 'broken' which has no loaded version. Model"),
        ({"models": ("wide",)}, "tensor X: inconsistent shape: [-1,4] is inferred from model"),
    ],
)
def test_an_ensemble_that_cannot_work_says_why(tmp_path, models, told):
    adder(tmp_path, "plus", config=ADDER_CONFIG)
    adder(tmp_path, "wide", shape=("N", 5), config="max_batch_size: 8")
    adder(tmp_path, "broken")
    (tmp_path / "broken" / "1" / "model.onnx").write_bytes(b"no model")
    chain(tmp_path, "both", *models.pop("models", ("plus",)), **models)
    with serving(tmp_path) as registry:
        assert told in registry.reason
        assert registry.versions("both") == ()
        assert registry.versions("plus") == (1,)


def test_an_empty_repository_is_not_ready_and_says_what_to_do(tmp_path):
    with serving(tmp_path) as registry:
        assert not registry.ready
        assert "create one with `fovea build`" in registry.reason
    (tmp_path / "loose.onnx").write_bytes(b"")
    with serving(tmp_path) as registry:
        assert "loose.onnx is an ONNX file" in registry.reason
    with pytest.raises(NotFound, match=r"loose\.onnx"):
        Registry(Settings(model_repository=tmp_path / "loose.onnx"))
    (tmp_path / "plus" / "1").mkdir(parents=True)
    (tmp_path / "plus" / "1" / "model.onnx").write_bytes(b"")
    with serving(tmp_path / "plus") as registry:
        assert registry.reason.endswith(
            "plus is a model's folder: serve its parent, or give --model-name"
        )


def test_the_folder_of_one_model_is_served_under_the_name_that_is_given(tmp_path):
    folder = adder(tmp_path, "plus", add=2, config=f'name: "plus" {ADDER_CONFIG}')
    mounted = folder.rename(tmp_path / "models")
    with serving(mounted, model_name="seven") as registry:
        assert registry.ready
        assert answer(registry.find("seven")) == 2
        assert [entry.name for entry in registry.index()] == ["seven"]
    # Of a repository it says nothing: each model has its own name.
    adder(tmp_path / "other", "seven")
    with serving(tmp_path / "other", model_name="eight") as registry:
        assert [entry.name for entry in registry.index()] == ["seven"]
    settings = Settings(model_repository=(mounted, tmp_path / "other"), model_name="seven")
    registry = Registry(settings)
    registry.start()
    wait_until(lambda: registry.started)
    assert "not unique across all model repositories" in registry.reason
    registry.close()
    with pytest.raises(InvalidOption):
        Registry(Settings(model_repository=mounted, model_name="../x"))


def test_settings_that_cannot_be_are_refused(tmp_path):
    with pytest.raises(NotFound):
        Registry(Settings(model_repository=tmp_path / "nowhere"))
    with pytest.raises(InvalidOption, match="local,size=BYTES"):
        Registry(Settings(model_repository=tmp_path, cache_config="redis"))


# Several repositories that are served as one.


@pytest.fixture
def united(tmp_path):
    registries = []

    def start(**settings):
        roots = (tmp_path / "a", tmp_path / "b", tmp_path / "a")
        registries.append(Registry(Settings(model_repository=roots, **settings)))
        registries[-1].start()
        wait_until(lambda: registries[-1].started)
        return registries[-1]

    adder(tmp_path / "a", "one", add=1)
    adder(tmp_path / "b", "two", add=2)
    yield start
    for registry in registries:
        registry.close()


def test_the_models_of_all_are_served(united):
    registry = united()
    assert registry.reason == ""
    assert answer(registry.find("one")) == 1
    assert answer(registry.find("two")) == 2
    assert [entry.name for entry in registry.index()] == ["one", "two"]


@pytest.mark.parametrize("mode", ["none", "explicit"])
def test_a_name_in_two_of_them_is_not_served(united, tmp_path, mode):
    adder(tmp_path / "b", "one", add=3)
    registry = united(model_control_mode=mode, load_model=("*",) if mode == "explicit" else ())
    fault = registry.reason.removeprefix("one: ")
    assert fault.startswith("failed to poll model 'one': not unique across all model repositories")
    for folder in "ab":
        assert str(tmp_path / folder / "one") in fault
    one, two = registry.index()
    assert one == IndexEntry("one", None, "UNAVAILABLE", fault)
    assert two == IndexEntry("two", "1", "READY")
    if mode == "explicit":
        with pytest.raises(LoadFailed):
            registry.load("one")
        registry.load("two")


def test_each_of_them_has_to_be_there(tmp_path):
    adder(tmp_path / "a", "one")
    with pytest.raises(NotFound, match="nowhere"):
        Registry(Settings(model_repository=(tmp_path / "a", tmp_path / "nowhere")))
