"""Pipelines are checked when they are loaded, and stay up while their models change."""

import json
import shutil
import threading
import time

import httpx
import pytest
from tests.keyed import key
from tests.server.pipelines.conftest import PIPELINE, write_pipeline
from tests.server.registries import serving
from tests.serving import start_server

from fovea_preprocess.errors import FoveaError

pytestmark = pytest.mark.slow

EXPLICIT = {"model_control_mode": "explicit", "load_model": ("*",)}
AFTER_READING = "model = 'reading'\n[[stages]]\nmodel = 'classes'\nfrom = 'reading'"
AFTER_CLASSES = "model = 'classes'\n[[stages]]\nmodel = 'reading'\nfrom = 'classes'\n"
FIRST = '[[stages]]\nmodel = "digits"\n[[stages]]\n'


@pytest.fixture(scope="module")
def registry(parts, tmp_path_factory):
    """A registry on a repository to which the tests add pipelines; its folder is `root`."""
    root = tmp_path_factory.mktemp("loading") / "repository"
    shutil.copytree(parts, root)
    with serving(root, **EXPLICIT) as registry:
        yield registry, root


FAULTS = {
    "modle = 'attributes'": r"stage 2: 'modle' is not a key; did you mean 'model'\?",
    "model = 'attributes'\niff = 0.5": r"stage 2: 'iff' is not a key; did you mean 'if'\?",
    "model = 'attributes'\nif = 2": "stage 2: if is 2; it must be less than or equal to 1",
    "model = 'attributes'\nif = true": "stage 2: if is true; it must be a number",
    "model = 'attributes'\ntop_k = '5'": "stage 2: top_k is '5'; it must be a whole number",
    "model = 'attributes'\nclasses = '1'": "classes is '1'; it must be a list, ",
    "model = 'attributes'\nclasses = [{}]": "classes has a table; it must be text in quotes",
    "name = 'attributes'": "stage 2: 'model' is missing",
    "model = 'attributes'\ncrop = 'rotatd'": "must be 'box', 'rotated' .*; did you mean 'rotated'",
    "model = 'attributes'\n[stage]": r"'stage' is not a key; did you mean 'stages'\?",
    "model = 'attributes'\nclasses = ['on']": "model 'digits' has no class 'on'",
    "model = 'attributes'\nclasses = [99]": "model 'digits' has no class 99",
    "model = 'attributes'\nto = 'text'": "the field text: set to = 'attributes'",
    "model = 'attributes'\nfrom = 'digit'": "name an earlier stage; did you mean",
    "model = 'attributes'\ncrop = 'keypoints'": "needs four keypoints, or the five of a face, but",
    "model = 'attributes'\ncrop = 'rotated'": "'digits' has no rotated boxes",
    "model = 'reading'\ntop_k = 2": "top_k has no effect on a model for read",
    "model = 'digits'": "two stages have the name 'digits': rename one",
    "model = 'digits'\nname = 'again'": "the task of 'digits' is detect: after the first stage",
    "model = '../digits'": "stage 2: '../digits' is not a valid model name",
    "model = 'attributes'\nmin_size = 1000000": "min_size is 1000000; it must be less than",
    "model = 'absent'": "a stage of 'bad' runs 'absent': the folder absent does not exist",
    "model = 'bad'": "a stage of 'bad' runs 'bad', which runs 'bad'",
    "model = 'attributes'\nturn = {red = 0.5}": "'attributes' has no effect without `from`",
    AFTER_READING: "returns classes, but",
    f"{AFTER_CLASSES}crop = 'box'": "remove crop, or remove",
    f"{AFTER_CLASSES}classes = ['x']": "no class 'x'",
    "model =": "is not TOML",
}


@pytest.mark.parametrize("text", FAULTS)
def test_a_fault_is_named(registry, text):
    models, root = registry
    write_pipeline(root, "bad", FIRST + text)
    with pytest.raises(FoveaError, match=FAULTS[text]):
        models.load("bad")
    entry = next(each for each in models.index() if each.name == "bad")
    assert entry.state == "UNAVAILABLE"
    assert str(root) not in entry.reason


def test_commands_know_it(parts, fovea, tmp_path):
    root = tmp_path / "repository"
    root.mkdir()
    for part in parts.iterdir():
        (root / part.name).symlink_to(part)
    write_pipeline(root, "plates", PIPELINE)
    code, out, err = fovea("inspect", "plates", "--repository", root, "--json")
    assert code == 0, err
    stages = json.loads(out)[0]["stages"]
    assert [(each["name"], each["model"], each["gives"]) for each in stages] == [
        ("digits", "digits", "detect"),
        ("attributes", "attributes", "attributes"),
        ("digit", "classes", "classes"),
        ("reading", "reading", "text"),
        ("embedding", "embedding", "embedding"),
    ]
    assert stages[1]["sees"] == "box crops; padding 0.1"
    code, out, _ = fovea("inspect", "--repository", root)
    assert (code, "pipeline of" in out) == (0, True)
    code, out, _ = fovea("versions", "plates", "--repository", root)
    assert (code, "`fovea versions digits`" in out) == (0, True)
    labels = root / "labels.json"
    labels.write_text("{}")
    code, _, err = fovea("eval", "plates", "--repository", root, "--data", labels)
    assert (code, "is a pipeline" in err) == (2, True)
    for stage, says in (("digit", "did you mean 'digits'"), ("plates", "run each other")):
        write_pipeline(
            root, "plates", f'[[stages]]\nmodel = "digits"\n[[stages]]\nmodel = "{stage}"'
        )
        code, _, err = fovea("inspect", "plates", "--repository", root)
        assert (code, says in err) == (1, True), err


def test_the_first_stage_finds_objects(registry):
    models, root = registry
    write_pipeline(root, "bad", '[[stages]]\nmodel = "reading"\n[[stages]]\nmodel = "attributes"')
    with pytest.raises(FoveaError, match="whose task is read: use a model that detects objects"):
        models.load("bad")
    write_pipeline(
        root, "bad", '[[stages]]\nmodel = "digits"\nif = 0.5\n[[stages]]\nmodel = "reading"'
    )
    with pytest.raises(FoveaError, match="if has no effect on the first stage"):
        models.load("bad")


def test_pipelines_that_run_each_other_are_a_circle(registry):
    models, root = registry
    for one, other in (("left", "right"), ("right", "left")):
        text = f'[[stages]]\nmodel = "{other}"\n[[stages]]\nmodel = "attributes"'
        write_pipeline(root, one, text)
    with pytest.raises(FoveaError, match=r"which runs '(left|right)': name another model"):
        models.load("left")


def test_inspect_finds_a_circle_through_any_stage(registry, fovea):
    _, root = registry
    for one, other in (("left", "right"), ("right", "left")):
        text = f'[[stages]]\nmodel = "digits"\n[[stages]]\nmodel = "{other}"'
        write_pipeline(root, one, text)
    code, _, err = fovea("inspect", "left", "--repository", root)
    assert (code, "run each other (left -> right -> left)" in err) == (1, True), err


def test_a_configuration_beside_it_is_refused(registry):
    models, root = registry
    write_pipeline(root, "bad", PIPELINE)
    (root / "bad" / "config.pbtxt").write_text("max_batch_size: 1")
    with pytest.raises(FoveaError, match=r"config\.pbtxt"):
        models.load("bad")
    (root / "bad" / "config.pbtxt").unlink()
    models.load("bad")
    assert models.find("bad").task == "detect"


def test_a_model_that_does_not_fit_any_more_closes_it(repository, demo_model):
    with serving(repository, **EXPLICIT) as models:
        before = models.find("plates")
        shutil.copytree(repository / "reading", repository / "kept")
        shutil.rmtree(repository / "reading")
        shutil.copytree(repository / "digits", repository / "reading")
        config = repository / "reading" / "config.pbtxt"
        config.write_text(config.read_text().replace('"digits"', '"reading"'))
        models.load("reading")
        entry = next(each for each in models.index() if each.name == "plates")
        assert entry.state == "UNAVAILABLE"
        assert "stage 'reading': the task of 'reading' is detect" in entry.reason
        shutil.rmtree(repository / "reading")
        (repository / "kept").rename(repository / "reading")
        models.load("reading")
        assert models.find("plates") is not before


def test_it_stays_up_while_a_stage_is_loaded_again(repository, scene, demo_model, tmp_path):
    server = start_server(repository, tmp_path, ["--model-control-mode=poll"])
    answers, stop = [], threading.Event()

    def ask():
        with httpx.Client() as client:
            while not stop.is_set():
                answers.append(client.post(server.predict_url("plates"), content=scene, timeout=60))

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for name in ("reading", "digits"):
        url = f"{server.url}/v2/repository/models/{name}/load"
        for stamp in range(3):
            (repository / name / "1" / "note").write_text(str(stamp))
            httpx.post(url, timeout=60)
    seen, until = len(answers), time.monotonic() + 60
    while len(answers) < seen + 6 and time.monotonic() < until:
        time.sleep(0.05)
    stop.set()
    for thread in threads:
        thread.join()
    assert {each.status_code for each in answers} == {200}
    assert len({each.text.partition('"timing_ms"')[0] for each in answers}) == 1
    assert server.stop() == 0


def test_a_stage_that_goes_away_and_a_deadline(repository, scene, tmp_path):
    server = start_server(repository, tmp_path, ["--model-control-mode=explicit", "--load-model=*"])
    late = {"x-request-timeout-ms": "1"}
    answer = httpx.post(server.predict_url("plates"), content=scene, headers=late)
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "deadline_exceeded")
    httpx.post(f"{server.url}/v2/repository/models/reading/unload").raise_for_status()
    answer = httpx.post(server.predict_url("plates"), content=scene)
    assert answer.status_code == 503, answer.text
    assert "'reading', which one of its stages runs, was unloaded" in answer.text
    httpx.post(f"{server.url}/v2/repository/models/plates/load").raise_for_status()
    assert httpx.post(server.predict_url("plates"), content=scene).status_code == 200
    assert server.stop() == 0


def test_a_key_for_the_pipeline_needs_none_for_its_models(repository, scene, tmp_path):
    keys = tmp_path / "keys.json"
    token = key("add", "gate", "--keys", keys, "--model", "plates")
    server = start_server(repository, tmp_path, [f"--keys={keys}"])
    headers = {"authorization": f"Bearer {token}"}
    statuses = {
        name: httpx.post(server.predict_url(name), content=scene, headers=headers).status_code
        for name in ("plates", "digits")
    }
    assert statuses == {"plates": 200, "digits": 403}
    assert server.stop() == 0
