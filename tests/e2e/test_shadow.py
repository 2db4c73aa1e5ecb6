"""A candidate beside the version that answers: what is compared, and all that may go wrong."""

import json
import os
import re
import shutil
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import cv2
import httpx
import numpy as np
import onnx
import psutil
import pytest
from onnx import numpy_helper
from tests.built import build
from tests.conftest import DEMO
from tests.keyed import key, tensor, until
from tests.serving import start_server
from tritonclient import grpc

from fovea_engines.build.acceptance import compare_engines
from fovea_engines.build.plan import BuildPlan
from fovea_engines.engine import Engine
from fovea_engines.results.vocabulary import NO_NAMES
from fovea_server.cli import shadow as command
from fovea_server.rollout import shadow
from fovea_server.rollout.shadow import Shadow
from fovea_server.rollout.shadow_report import ShadowCandidate, ShadowRequest, explain_stall
from fovea_server.settings import Settings

pytestmark = pytest.mark.slow

SCENES = [(DEMO / f"scene-{number}.jpg").read_bytes() for number in (1, 2)]
WORSE, CLASSIFIER, OTHER_LABELS, DAMAGED, SAME, LIVE = 1, 2, 3, 4, 5, 6
OVER = ("finished", "decided", "stopped", "failed")


@pytest.fixture(scope="module")
def repository(demo_repository, demo_batches, tmp_path_factory):
    """The demo model with candidates of all kinds, and one whose requests wait for others."""
    made = tmp_path_factory.mktemp("shadow")
    graph, rng = onnx.load(DEMO / "digits.onnx"), np.random.default_rng(1)
    for weights in graph.graph.initializer:
        values = numpy_helper.to_array(weights)
        if values.ndim == 4:
            noisy = values * (1 + 0.15 * rng.standard_normal(values.shape))
            named = numpy_helper.from_array(noisy.astype(values.dtype), weights.name)
            weights.CopyFrom(named)
    onnx.save(graph, made / "worse.onnx")
    folder = made / "r"
    build(BuildPlan(made / "worse.onnx", "digits", folder, "onnxruntime"))
    build(BuildPlan(DEMO / "digits-classify.onnx", "digits", folder, "onnxruntime"))
    for version in (OTHER_LABELS, DAMAGED, SAME, LIVE):
        shutil.copytree(demo_repository / "digits" / "1", folder / "digits" / str(version))
    shutil.copy(demo_repository / "digits" / "config.pbtxt", folder / "digits")
    card = folder / "digits" / str(OTHER_LABELS) / "card.json"
    document = json.loads(card.read_text())
    document["labels"][3] = "three"
    card.write_text(json.dumps(document))
    with (folder / "digits" / str(DAMAGED) / "model.onnx").open("ab") as file:
        file.write(b"more")
    shutil.copytree(demo_batches / "digits", folder / "waiting")
    config = folder / "waiting" / "config.pbtxt"
    text = config.read_text().replace('name: "digits"', 'name: "waiting"', 1)
    delay = "dynamic_batching { preferred_batch_size: 4 max_queue_delay_microseconds: 60000000 }"
    config.write_text(re.sub(r"dynamic_batching \{[^}]*\}", "", text) + delay)
    return folder


@pytest.fixture(scope="module")
def http(server):
    with httpx.Client(base_url=server.url, timeout=120) as client:
        yield client


PATH = "/v1/models/digits/shadow"


def begin(http, version, **more):
    answer = http.put(PATH, json={"version": version, "share": 1, **more})
    assert answer.status_code == 200, answer.text
    until(lambda: http.get(PATH).json()["state"] != "starting")
    return http.get(PATH).json()


def predict(http, image=SCENES[0], **more):
    answer = http.post("/v1/models/digits/predict", content=image, **more)
    assert answer.status_code == 200, answer.text


def workers(server):
    """The processes of candidates that the server has."""
    return [
        each
        for each in psutil.Process(server.process.pid).children(recursive=True)
        if each.status() == psutil.STATUS_ZOMBIE
        or "fovea_server.rollout.shadow_worker" in each.cmdline()
    ]


def compared(http):
    report = http.get(PATH).json()["report"]
    return 0 if report is None else report["images"]


def test_the_report_has_the_figures_of_the_agreement(server, http, repository, tmp_path):
    images = tmp_path / "images"
    images.mkdir()
    rng = np.random.default_rng(2)
    for number in range(12):
        scene = cv2.imdecode(np.frombuffer(SCENES[number % 2], np.uint8), 1)
        x, y = rng.integers(1, 120, 2)
        cut = (scene[y:, x:] * rng.uniform(0.4, 1)).astype(np.uint8)
        cv2.imwrite(str(images / f"{number:02}.png"), cut)
    folder = repository / "digits"
    with Engine.open(folder / str(LIVE)) as live, Engine.open(folder / str(WORSE)) as worse:
        want = compare_engines(live, worse, images)
    assert want.missed + want.extra > 3
    assert begin(http, WORSE, images=12)["state"] == "running"
    [worker] = workers(server)
    assert os.sched_getscheduler(worker.pid) == os.SCHED_IDLE
    for number, path in enumerate(sorted(images.iterdir())):
        # As low as the agreement looks, and one after the other, so that none is left out.
        answer = http.post(
            "/v1/models/digits/predict?conf=0.2",
            content=path.read_bytes(),
            headers={"x-request-id": path.name},
        )
        assert answer.status_code == 200
        until(lambda number=number: compared(http) == number + 1)
    until(lambda: http.get(PATH).json()["state"] == "finished")
    document = http.get(PATH).json()
    report = document["report"]
    assert (report["all"]["missed"], report["all"]["extra"]) == (want.missed, want.extra)
    assert report["all"]["overlap"] == pytest.approx(want.mean_iou, abs=1e-4)
    assert {one["request_id"] for one in report["worst"]} >= {
        one.name for one in want.worst if one.missed + one.extra
    }
    picture = http.get(f"{PATH}/worst/{report['worst'][0]['picture']}")
    both = cv2.imdecode(np.frombuffer(picture.content, np.uint8), 1)
    assert both.shape[1] > 1.5 * both.shape[0] > 100
    page = http.get(f"{PATH}/report.md")
    assert page.headers["content-type"].startswith("text/markdown")
    assert f"| all | {report['all']['objects']} | {want.missed} | {want.extra} |" in page.text
    labels = ('model="digits"', f'version="{WORSE}"')
    assert server.metric("fovea_shadow_images_total", *labels, 'outcome="compared"') == 12
    assert server.metric("fovea_shadow_disagreement", *labels) > 0
    until(lambda: not workers(server))


def test_it_never_runs_while_requests_wait(server, http):
    begin(http, SAME)
    statistics = "/v1/models/waiting/statistics"

    def pending():
        return http.get(statistics).json()["versions"][0]["pending"]

    def wait():
        with grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
            client.infer("waiting", [tensor()])

    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(wait)
        until(pending)
        for _ in range(5):
            predict(http)
        assert http.get(PATH).json()["skipped"]["waiting"] == 5
        rest = [pool.submit(wait) for _ in range(3)]
        for each in (first, *rest):
            each.result()
    assert compared(http) == 0
    predict(http)
    until(lambda: compared(http) == 1)
    assert http.delete(PATH).json()["state"] == "stopped"
    assert not workers(server)


def test_a_canary_says_that_images_were_not_compared_as_requests_waited(server, http):
    plan = {"version": SAME, "canary": 0.3, "seconds": 600, "max_disagreement": 0.5}

    def wait():
        with grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
            client.infer("waiting", [tensor()])

    def pending():
        statistics = http.get("/v1/models/waiting/statistics").json()
        return statistics["versions"][0]["pending"]

    def lacks():
        predict(http)
        return http.get("/v1/models/digits/history").json()["canary"].get("waits_for", "")

    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(wait)
        until(pending)
        answer = http.post("/v1/models/digits/promote", json=plan)
        assert answer.status_code == 200, answer.text
        words = r"50 more images to be compared \(\d+ images were not compared, because requests"
        until(lambda: re.search(words, lacks()))
        assert http.post("/v1/models/digits/rollback").status_code == 200
        rest = [pool.submit(wait) for _ in range(3)]
        for each in (first, *rest):
            each.result()


@pytest.mark.parametrize(
    ("version", "reason"), [(CLASSIFIER, "classify"), (OTHER_LABELS, "'three'"), (DAMAGED, "build")]
)
def test_a_candidate_that_cannot_be_compared_says_why(server, http, version, reason):
    document = begin(http, version)
    assert document["state"] == "failed"
    assert reason in document["reason"]
    until(lambda: not workers(server))
    predict(http)
    assert http.delete(PATH).json()["state"] == "failed"


def test_bad_requests(http):
    for body, status, words in (
        ({"version": LIVE}, 422, "current"),
        ({"version": 9}, 404, "1, 2, 3, 4, 5, 6"),
        ({"version": 1, "share": 0}, 422, "share"),
        ({"verion": 1}, 422, "'version'"),
        ([], 400, "object"),
    ):
        response = http.put(PATH, json=body)
        assert (response.status_code, words in response.text) == (status, True), response.text
    assert http.get("/v1/models/waiting/shadow").status_code == 404


def test_a_candidate_that_crashes_leaves_the_server_alone(server, http):
    begin(http, SAME)
    [worker] = workers(server)
    worker.send_signal(signal.SIGSEGV)
    predict(http)
    until(lambda: http.get(PATH).json()["state"] == "failed")
    assert "SIGSEGV" in http.get(PATH).json()["reason"]
    assert not workers(server)


def test_a_candidate_that_hangs_has_failed(repository, monkeypatch):
    monkeypatch.setattr(shadow, "_DEADLINE_S", 1)
    candidate = ShadowCandidate(
        *(repository / "digits", "digits", SAME, LIVE, "detect"),
        vocabulary=NO_NAMES,
        settings=Settings(model_repository=(repository,)),
    )
    one = Shadow(ShadowRequest(version=SAME), candidate, lambda: False, lambda: "")
    until(lambda: one._process)
    one._process.send_signal(signal.SIGSTOP)
    until(lambda: one.is_over)
    assert one.document().state == "failed"
    assert "within 1 s" in one.document().reason
    one.stop("the test is over")
    assert one._process.returncode == -signal.SIGKILL


def test_a_version_that_is_deleted_meanwhile_ends_it(server, http, repository):
    gone = repository / "digits" / "7"
    shutil.copytree(repository / "digits" / str(SAME), gone)
    begin(http, 7)
    shutil.rmtree(gone)
    until(lambda: http.get(PATH).json()["state"] == "failed")
    assert http.get(PATH).json()["reason"] == "version 7 was deleted"
    until(lambda: not workers(server))


def traffic(http, ended, begins=None):
    """Send requests until the event, from the other event on."""
    assert begins is None or begins.wait(60)
    while not ended.is_set():
        predict(http, SCENES[1])


def test_the_command(server, http, fovea, tmp_path):
    """It ends when the shadow is decided or has seen all images, and stops one."""
    url, ended = ("--url", server.url), threading.Event()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(traffic, http, ended)
        try:
            limit = ("--share", "1", "--max-disagreement", "2%")
            code, out, err = fovea("shadow", "digits", WORSE, *limit, *url, "--json")
            assert (code, json.loads(out)["state"]) == (1, "decided"), err
            assert "above the limit of 2%" in json.loads(out)["reason"]
            assert json.loads(out)["verdict"] == "above"
            # Four images are too few to exclude the limit.
            few = ("--share", "1", "--images", "4", "--max-disagreement", "2%", "--out", "few")
            code, out, err = fovea("shadow", "digits", SAME, *few, *url)
            assert (code, "Verdict: undecided" in out) == (1, True), err
            enough = ("--share", "1", "--images", "200", "--max-disagreement", "50%")
            code, out, err = fovea("shadow", "digits", SAME, *enough, *url)
            assert (code, "Verdict: below the limit of 50%" in out) == (0, True), err
            written = ("--share", "1", "--images", "8", "--out", "shadow")
            code, out, err = fovea("shadow", "digits", SAME, *written, *url)
            assert (code, "8 images" in out) == (0, True), err
        finally:
            ended.set()
    report = json.loads((tmp_path / "shadow" / "shadow.json").read_text())["report"]
    assert report["disagreement"] == 0
    assert json.loads((tmp_path / "few" / "shadow.json").read_text())["verdict"] == "undecided"
    assert "Verdict: undecided" in (tmp_path / "few" / "shadow.md").read_text()
    assert "version 5" in (tmp_path / "shadow" / "shadow.md").read_text()
    begin(http, SAME)
    code, out, _ = fovea("shadow", "digits", "--stop", *url)
    assert (code, "stopped" in out) == (0, True)
    code, _, err = fovea("shadow", "digits", "9", *url)
    assert (code, "version 9" in err) == (2, True)


def test_a_shadow_that_sees_nothing_says_what_to_do(server, http, fovea, monkeypatch):
    explained, ended = threading.Event(), threading.Event()

    def explain(*given):
        explained.set()
        return explain_stall(*given)

    monkeypatch.setattr(command, "explain_stall", explain)
    monkeypatch.setattr(command, "_PATIENCE_S", 1)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(traffic, http, ended, explained)
        flags = ("--share", "1", "--images", "1", "--url", server.url, "--json")
        try:
            code, out, err = fovea("shadow", "digits", SAME, *flags)
        finally:
            ended.set()
    assert (code, json.loads(out)["state"]) == (0, "finished"), err
    assert "no image arrived" in " ".join(err.split()) or "still loading" in err


def test_a_server_that_is_killed_leaves_no_candidate(repository, tmp_path):
    server = start_server(repository, tmp_path)
    with httpx.Client(base_url=server.url, timeout=60) as http:
        begin(http, SAME)
    [worker] = workers(server)
    server.process.kill()
    server.process.wait()
    until(lambda: not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE)


def test_pictures_are_kept_of_those_who_allow_it_and_shown_to_those_who_control(
    repository, tmp_path
):
    keys = tmp_path / "keys.json"
    private, shared, owner = (
        key("add", name, "--keys", keys, *scope)
        for name, *scope in (
            ("private",),
            ("shared", "--scope", "predict,capture"),
            ("owner", "--scope", "control"),
        )
    )
    server = start_server(repository, tmp_path, ["--keys", str(keys)])
    clients = [
        httpx.Client(base_url=server.url, timeout=60, headers={"authorization": f"Bearer {token}"})
        for token in (private, shared, owner)
    ]
    closed, open_, control = clients
    assert closed.put(PATH, json={"version": WORSE}).status_code == 403
    begin(control, WORSE)
    for number, client in enumerate((closed, open_)):
        predict(client, SCENES[0], headers={"x-request-id": f"of-{number}"})
        until(lambda number=number: compared(control) == number + 1)
    [worst] = control.get(PATH).json()["report"]["worst"]
    assert worst["request_id"] == "of-1"
    picture = f"{PATH}/worst/{worst['picture']}"
    assert [each.get(picture).status_code for each in clients] == [403, 403, 200]
    # And a server that stops takes its candidate along.
    [worker] = workers(server)
    for client in clients:
        client.close()
    assert server.stop() == 0
    assert not worker.is_running()
    assert "ended: the server stops" in server.log.read_text()


def test_a_canary_goes_back_when_its_results_differ_and_else_becomes_current(server, http):
    # On a busy machine a candidate takes seconds to see enough images; the worse one ends earlier.
    for version, seconds, limit, action in (
        (WORSE, 600, 0.001, "canary_failed"),
        (SAME, 10, 0.5, "canary_passed"),
    ):
        plan = {"version": version, "canary": 0.3, "seconds": seconds, "max_disagreement": limit}
        answer = http.post("/v1/models/digits/promote", json=plan)
        assert answer.status_code == 200, answer.text
        document = answer.json()
        for turn in range(3000):
            if "canary" not in document:
                break
            predict(http, SCENES[turn % 2])
            time.sleep(0.02)  # a candidate runs while no request waits
            document = http.get("/v1/models/digits/history").json()
        last = document["events"][-1]
        assert (last["action"], last["version"]) == (action, str(version)), last
        until(lambda: http.get(PATH).json()["state"] in OVER and not workers(server))
        assert ("above the limit of 0.1%" in last["why"]) == (version == WORSE), last
    assert http.post("/v1/models/digits/rollback", json={}).json()["current"] == str(LIVE)


def test_a_shadow_ends_when_another_version_answers(server, http):
    begin(http, SAME)
    assert http.post("/v1/models/digits/promote", json={"version": SAME}).status_code == 200
    until(lambda: http.get(PATH).json()["state"] == "failed")
    assert http.get(PATH).json()["reason"] == f"version {SAME} is current now"
