"""Which versions of a model are served, and that each answers as itself."""

import json
import re
import time
from pathlib import Path

import httpx
import pytest
from tests.built import build

from fovea_engines.build.plan import BuildPlan

pytestmark = pytest.mark.slow

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


@pytest.fixture(scope="module")
def two_versions(demo_model, tmp_path_factory) -> Path:
    """A repository with the demo model as version 1, and as version 2 with other labels."""
    repository = tmp_path_factory.mktemp("versions") / "repository"
    for labels in (None, WORDS):
        build(BuildPlan(demo_model, "digits", repository, "onnxruntime", labels=labels))
    return repository


def with_policy(repository: Path, policy: str) -> Path:
    (repository / "digits" / "config.pbtxt").write_text(f"version_policy {{ {policy} }}")
    return repository


def names(response) -> list[str]:
    return sorted(d["class_name"] for d in response.json()["images"][0]["detections"])


def test_versions_side_by_side_answer_each_with_its_own_labels(two_versions, serve, scene, fovea):
    server = serve(with_policy(two_versions, "all {}"))

    def predict(path: str) -> httpx.Response:
        return httpx.post(f"{server.url}/v1/models/digits/{path}", content=scene)

    first, second = predict("versions/1/predict"), predict("versions/2/predict")
    assert (first.json()["version"], second.json()["version"]) == ("1", "2")
    assert names(first)
    assert sorted(WORDS[int(name)] for name in names(first)) == names(second)
    assert predict("predict").json()["version"] == "2"
    missing = predict("versions/3/predict")
    assert missing.status_code == 404
    assert "served versions: 1, 2" in missing.json()["error"]["message"]
    for version, status in ((1, 200), (2, 200), (3, 400)):
        ready = httpx.get(f"{server.url}/v2/models/digits/versions/{version}/ready")
        assert ready.status_code == status
    # The policy changes, and the server has loaded the old version all the same.
    with_policy(two_versions, "latest { }")
    given = ("digits", "--repository", two_versions, "--url", server.url)
    code, out, err = fovea("versions", *given, "--prune", "--keep=1", "--yes", "--json")
    assert code == 0, err
    document = json.loads(out)
    assert [(one["served"], one["server"]) for one in document["versions"]] == [
        (False, "READY"), (True, "READY"),
    ]  # fmt: skip
    assert (document["deleted"], len(list((two_versions / "digits").glob("[12]")))) == ([], 2)
    server.stop()
    code, _, err = fovea("versions", *given, "--prune", "--keep=1", "--yes")
    assert (code, "is a server running there?" in err) == (1, True), err


@pytest.mark.parametrize(
    ("policy", "served"),
    [("latest { num_versions: 1 }", 2), ("specific { versions: [1] }", 1)],
)
def test_only_what_the_policy_names_is_served(two_versions, serve, scene, policy, served):
    server = serve(with_policy(two_versions, policy))
    answer = httpx.post(server.predict_url("digits"), content=scene).json()
    assert answer["version"] == str(served)
    other = f"{server.url}/v1/models/digits/versions/{3 - served}"
    refused = httpx.post(f"{other}/predict", content=scene)
    assert refused.status_code == 404
    told = refused.json()["error"]["message"]
    assert told.startswith(f"version {3 - served} of model 'digits' is there, but not served")
    # As it is told.
    [path] = re.findall(r"POST (\S+)", told)
    [listed] = httpx.get(f"{server.url}/v1/models").json()["models"]
    assert path in next(each["reason"] for each in listed["versions"] if not each["ready"])
    loaded = httpx.post(f"{server.url}{path}")
    assert (loaded.status_code, loaded.json()["version"]) == (200, str(3 - served)), loaded.text
    by_number = httpx.post(f"{other}/predict", content=scene).json()["version"]
    by_name = httpx.post(server.predict_url("digits"), content=scene).json()["version"]
    assert (by_number, by_name) == (str(3 - served), str(served))
    missing = httpx.post(f"{server.url}/v1/models/digits/versions/9/load")
    assert (missing.status_code, "has no version 9" in missing.text) == (404, True)
    from_afar = {"x-forwarded-for": "192.0.2.1"}
    assert httpx.post(f"{server.url}{path}", headers=from_afar).status_code == 403


def test_a_version_that_goes_is_in_the_log(two_versions, serve):
    flags = ("--model-control-mode=poll", "--repository-poll-secs=0.2")
    repository = with_policy(two_versions, "all { }")
    server = serve(repository, *flags)
    with_policy(two_versions, "specific { versions: [1] }")
    until = time.monotonic() + 60
    while "model digits version 2 is unloaded" not in server.log.read_text():
        assert time.monotonic() < until
        time.sleep(0.1)
