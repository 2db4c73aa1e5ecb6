"""Promotions, canaries and the way back on a server that is asked without pause."""

import http.client
import json
import shutil
import subprocess
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import httpx
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.keyed import key, until
from tests.load import Load, over_http
from tests.promoting import MODES, change_until_it_dies, clients, there_and_back
from tests.server.registries import ADDER_CONFIG, adder
from tests.serving import start_server
from tritonclient import grpc

from fovea_engines.repository.repository import ModelRepository

pytestmark = pytest.mark.slow


@pytest.fixture
def versions(demo_versions, tmp_path):
    """A repository with two versions of the demo model, to be written to."""
    copied = shutil.copytree(demo_versions, tmp_path / "repository")
    # The build of version 2 wrote it.
    (copied / "digits" / "history.jsonl").unlink()
    return copied


def history(server, model="digits"):
    answer = httpx.get(f"{server.url}/v1/models/{model}/history", timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()


def post(server, what, model="digits", headers=None, **given):
    url = f"{server.url}/v1/models/{model}/{what}"
    return httpx.post(url, json=given, timeout=60, headers=headers)


@pytest.mark.parametrize("mode", MODES)
def test_promotions_and_rollbacks_fail_no_request(versions, serve, fovea, mode):
    server = serve(versions, *MODES[mode])
    pinned = Load(over_http(server.url, "digits/versions/2"), 1)
    grpc_address = f"127.0.0.1:{server.grpc_port}"
    with pinned as other, clients(server.url, grpc_address, 2) as (http, rpc):
        there_and_back(server.url, (http, rpc), 1)
        # A file that another process has written is followed, too.
        code, out, err = fovea("promote", "digits", 1, "--repository", versions, "--why", "by file")
        assert code == 0, err
        assert "Version 1 of digits is current" in out
        until(lambda: httpx.get(f"{server.url}/v1/models/digits").json()["version"] == "1")
    assert not (http.failed + rpc.failed + other.failed)
    assert set(http.answered) | set(rpc.answered) == {"1", "2"}
    assert set(other.answered) == {"2"}
    events = history(server)["events"]
    assert [each["action"] for each in events] == ["promote", "rollback", "promote"]
    assert {each["why"] for each in events} == {"a test", "", "by file"}
    # The models that are listed, and Triton's index and metadata, tell which one it is.
    [listed] = httpx.get(f"{server.url}/v1/models").json()["models"]
    assert {each["version"]: each["current"] for each in listed["versions"]} == {
        "1": True, "2": False,
    }  # fmt: skip
    index = httpx.post(f"{server.url}/v2/repository/index").json()
    assert [each.get("current", False) for each in index] == [True, False]
    assert httpx.get(f"{server.url}/v2/models/digits").json()["current_version"] == "1"
    with grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        models = client.get_model_repository_index().models
        assert [each.reason for each in models] == ["current", ""]
    # And it is remembered, with all that was told before the server is killed.
    changing, told = change_until_it_dies(server.url, 3)
    until(lambda: told[-1] >= 8)
    server.process.kill()
    changing.join()
    server.process.wait()
    events = ModelRepository(versions).history("digits").events
    assert told[-1] <= len(events) <= told[-1] + 1
    server = serve(versions, *MODES[mode])
    found = history(server)
    assert len(found["events"]) == len(events)
    version = httpx.get(f"{server.url}/v1/models/digits").json()["version"]
    assert version == found["current"] == found["events"][-1]["version"]


def slow(folder, version):
    """Write a version that answers the same, and takes long."""
    size = 700
    ones = numpy_helper.from_array(np.ones((size, size), np.float32), "ones")
    nodes = [helper.make_node("MatMul", ["ones", "ones"], ["t0"])]
    nodes += [helper.make_node("MatMul", [f"t{i}", "ones"], [f"t{i + 1}"]) for i in range(3)]
    # Of what depends on the input, nothing is computed beforehand.
    nodes[0] = helper.make_node("Mul", ["scale", "ones"], ["t0"])
    nodes.insert(0, helper.make_node("ReduceMax", ["Xf"], ["scale"], keepdims=0))
    nodes.insert(0, helper.make_node("Cast", ["X"], ["Xf"], to=TensorProto.FLOAT))
    nodes += [
        helper.make_node("ReduceMax", ["t3"], ["top"], keepdims=0),
        helper.make_node("Mul", ["top", "none"], ["nothing"]),
        helper.make_node("Cast", ["nothing"], ["zero"], to=TensorProto.INT32),
        helper.make_node("Add", ["X", "zero"], ["Y"]),
    ]
    given = [helper.make_tensor_value_info("X", TensorProto.INT32, ("N", 4))]
    found = [helper.make_tensor_value_info("Y", TensorProto.INT32, ("N", 4))]
    none = numpy_helper.from_array(np.array(0, np.float32), "none")
    graph = helper.make_graph(nodes, "slow", given, found, [ones, none])
    write(graph, folder, version)


def failing(folder, version):
    """Write a version that fails where the input is 9."""
    table = numpy_helper.from_array(np.arange(5, dtype=np.int32), "table")
    given = [helper.make_tensor_value_info("X", TensorProto.INT32, ("N", 4))]
    found = [helper.make_tensor_value_info("Y", TensorProto.INT32, ("N", 4))]
    node = helper.make_node("Gather", ["table", "X"], ["Y"])
    write(helper.make_graph([node], "failing", given, found, [table]), folder, version)


def write(graph, folder, version):
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=9)
    (folder / str(version)).mkdir()
    onnx.save(model, folder / str(version) / "model.onnx")


@pytest.fixture(scope="module")
def adders(tmp_path_factory):
    """A server with a model of tensors: version 1, one that is slow, one that fails, a good one."""
    folder = tmp_path_factory.mktemp("canaries")
    model = adder(folder / "r", "plus", version=1, add=0, config=ADDER_CONFIG)
    slow(model, 2)
    failing(model, 3)
    adder(folder / "r", "plus", version=4, add=0)
    adder(folder / "r", "one", version=1)
    sequences = "sequence_batching { max_sequence_idle_microseconds: 600000000 }"
    for version in (1, 2):
        adder(folder / "r", "kept", version=version, config=ADDER_CONFIG + sequences)
    server = start_server(folder / "r", folder)
    assert post(server, "promote", "plus", version=1).status_code == 200
    yield server
    server.stop()


def ask(client, value=9, model="plus", **parameters):
    """Ask the model of no version; the one that answers."""
    given = {"name": "X", "datatype": "INT32", "shape": [1, 4], "data": [value] * 4}
    body = {"inputs": [given], "parameters": parameters}
    answer = client.post(f"/v2/models/{model}/infer", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()["model_version"]


def until_over(server):
    """Ask until no canary runs; the versions that answered, and the last event."""
    seen = []
    with httpx.Client(base_url=server.url, timeout=60) as client:
        while True:
            found = history(server, "plus")
            if "canary" not in found:
                return seen, found
            seen += [ask(client) for _ in range(40)]
            assert len(seen) < 20_000


@pytest.mark.parametrize(
    ("version", "limits", "why"), [(3, {}, "requests failed"), (2, {"max_p99": 1.0}, "p99")]
)
def test_a_canary_over_a_limit_goes_back_by_itself(adders, version, limits, why):
    plan = {"version": version, "canary": 0.5, **limits}
    answer = post(adders, "promote", "plus", **plan)
    assert answer.status_code == 200, answer.text
    assert answer.json()["canary"]["version"] == str(version)
    again = post(adders, "promote", "plus", **plan)
    assert again.status_code == 400
    seen, found = until_over(adders)
    # What the failing one cannot answer, the current one does.
    assert set(seen) == ({"1"} if version == 3 else {"1", "2"})
    assert found["current"] == "1"
    last = found["events"][-1]
    assert (last["action"], last["version"]) == ("canary_failed", str(version))
    assert (last["who"], why in last["why"]) == ("fovea", True)


def test_a_good_canary_gets_its_share_and_becomes_current(adders):
    answer = post(adders, "promote", "plus", version=4, canary=0.25, seconds=2)
    assert answer.status_code == 200, answer.text
    with httpx.Client(base_url=adders.url, timeout=60) as client:
        seen = [ask(client) for _ in range(40)]
    assert seen.count("4") == 10 or history(adders, "plus")["current"] == "4"
    _, found = until_over(adders)
    assert (found["current"], found["events"][-1]["action"]) == ("4", "canary_passed")
    assert post(adders, "rollback", "plus").json()["current"] == "1"


def test_a_canary_with_too_few_requests_goes_back_after_its_time(adders, fovea):
    given = {"version": 4, "canary": 0.25, "seconds": 1, "max_p99": 3.0}
    assert post(adders, "promote", "plus", **given).status_code == 200
    with httpx.Client(base_url=adders.url, timeout=60) as client:
        seen = [ask(client) for _ in range(8)]
        assert seen.count("4") == 2 or history(adders, "plus").get("canary") is None
    canary = history(adders, "plus").get("canary", {"waits_for": "18 more requests to it"})
    assert canary["waits_for"].startswith("18 more requests to it")
    until(lambda: "canary" not in history(adders, "plus"))
    found = history(adders, "plus")
    last = found["events"][-1]
    assert (found["current"], last["action"]) == ("1", "canary_failed")
    assert "18 more requests to it and " in last["why"]
    # It was current before, but a rollback does not restore it.
    refused = httpx.post(f"{adders.url}/v1/models/plus/rollback", timeout=60)  # without a body
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_request")
    assert "version 4 was current before, but its canary failed at " in refused.text


def test_a_canary_counts_on_after_a_restart(tmp_path):
    for version in (1, 2):
        adder(tmp_path / "r", "plus", version=version, config=ADDER_CONFIG)
    server = start_server(tmp_path / "r", tmp_path)
    try:
        assert post(server, "promote", "plus", version=1).status_code == 200
        plan = {"version": 2, "canary": 0.5, "seconds": 3600}
        assert post(server, "promote", "plus", **plan).status_code == 200
        with httpx.Client(base_url=server.url, timeout=60) as client:
            seen = [ask(client) for _ in range(10)]
        before = history(server, "plus")["canary"]
    finally:
        assert server.stop() == 0
    assert (before["answered"], before["current_answered"]) == (seen.count("2"), seen.count("1"))
    again = start_server(tmp_path / "r", tmp_path)
    try:
        until(lambda: "canary" in history(again, "plus"))
        after = history(again, "plus")["canary"]
        assert after == {each: before[each] for each in after}
        assert post(again, "rollback", "plus").status_code == 200
        assert not list((tmp_path / "r" / "plus").glob(".canary*"))
    finally:
        assert again.stop() == 0


def test_a_full_queue_is_no_failure_of_a_version(adders, tmp_path):
    """One request waits at most: of twenty at a time most are refused."""
    folder = shutil.copytree(adders.log.parent / "r", tmp_path / "r")
    (folder / "plus" / "history.jsonl").unlink()
    server = start_server(folder, tmp_path, ["--max-queue=1"])
    try:
        for plan in ({"version": 2}, {"version": 4, "canary": 0.5, "seconds": 600}):
            assert post(server, "promote", "plus", **plan).status_code == 200
        body = {"inputs": [{"name": "X", "datatype": "INT32", "shape": [1, 4], "data": [9] * 4}]}
        with httpx.Client(base_url=server.url, timeout=120) as client:

            def status(_: int) -> int:
                return client.post("/v2/models/plus/infer", json=body).status_code

            with ThreadPoolExecutor(20) as pool:
                statuses = Counter(pool.map(status, range(200)))
        assert statuses.keys() <= {200, 503}
        canary = history(server, "plus")["canary"]
        assert canary["answered"] + canary["current_answered"] == statuses[200]
        assert (canary["failed"], canary["current_failed"]) == (0, 0)
    finally:
        server.stop()


def test_what_cannot_be_promoted_says_why(adders, fovea):
    model = adders.log.parent / "r" / "plus"
    (model / "6").mkdir()
    (model / "6" / "model.onnx").write_bytes(b"no model")
    before = history(adders, "plus")
    for plan, status, words in (
        ({"version": 6}, 400, "version 6"),
        ({"version": 77}, 404, "1, 2"),
        ({"version": 5, "canary": 0.5}, 404, "version 5"),
        ({}, 422, "'version'"),
        ({"version": 1, "now": True}, 422, "'now'"),
        ({"version": 4, "canary": 0.9}, 422, "0.5"),
        ({"version": 4, "max_p99": 0.1}, 422, "max_p99"),
        ({"version": 4, "canary": 0.1, "seconds": 1e300}, 422, "1e+300"),
        ({"version": 1, "canary": 0.1}, 400, "version 1"),
    ):
        response = post(adders, "promote", "plus", **plan)
        assert (response.status_code, words in response.text) == (status, True), response.text
    for method, route in (("POST", "promote"), ("PUT", "shadow")):
        response = httpx.request(method, f"{adders.url}/v1/models/plus/{route}", timeout=60)
        assert (response.status_code, "'version'" in response.text) == (422, True), response.text
    assert post(adders, "rollback", "one").status_code == 400
    assert post(adders, "promote", "nobody", version=1).status_code == 404
    assert history(adders, "plus") == before
    assert not (model.parent / "one" / "history.jsonl").exists()
    # Names that lead out of the repository.
    for name in ("%2e%2e", "%2e", ".hidden"):
        address = ("127.0.0.1", int(adders.url.rpartition(":")[2]))
        with closing(http.client.HTTPConnection(*address, timeout=60)) as raw:
            raw.request("POST", f"/v1/models/{name}/promote", '{"version": 1}')
            assert raw.getresponse().status == 404
    assert not [*model.parents[1].glob("history.jsonl"), *model.parent.glob("history.jsonl")]
    shutil.rmtree(model / "6")
    for plan, words in (
        ((1, "--max-p99", "+10%"), "--canary"),
        ((77,), "77"),
        ((4, "--canary", "half"), "5%"),
    ):
        code, _, err = fovea("promote", "plus", *plan, "--url", adders.url)
        assert (code, words in err) == (2, True), err


def test_a_history_that_is_no_canary_stops_no_other_model(adders):
    """Somebody has edited the file of one model."""
    one = adders.log.parent / "r" / "one"
    at = {"at": "2026-11-27T12:00:00+00:00", "who": "x", "why": "", "previous": 1}
    canary = {"action": "canary", "version": 1, "share": "much", "seconds": 1e300, **at}
    (one / "history.jsonl").write_text(json.dumps(canary) + "\n")
    url = f"{adders.url}/v1/models/one/history"
    until(lambda: httpx.get(url).status_code == 500)
    assert "one/history.jsonl" in httpx.get(url).text
    record = adders.log.parent / "r" / "plus" / "history.jsonl"
    for version, previous in ((4, 1), (1, 4)):
        with record.open("a") as file:
            event = {"action": "promote", "version": version, **at, "previous": previous}
            file.write(json.dumps(event) + "\n")
        until(
            lambda version=version: (
                httpx.get(f"{adders.url}/v1/models/plus").json()["version"] == str(version)
            )
        )
    (one / "history.jsonl").unlink()
    until(lambda: httpx.get(url).status_code == 200)


def test_the_commands_ask_a_server(adders, fovea):
    code, out, err = fovea("promote", "plus", 4, "--url", adders.url, "--why", "it is better")
    assert (code, out) == (0, "Version 4 of plus is current.\n"), err
    code, out, _ = fovea("rollback", "plus", "--url", adders.url)
    assert (code, out) == (0, "Version 1 of plus is current again, in place of version 4.\n")
    code, out, _ = fovea("versions", "plus", "--history", "--url", adders.url)
    assert (code, "it is better" in out, "current: 1" in out) == (0, True, True)
    code, out, _ = fovea("promote", "plus", 4, "--canary", "5%", "--url", adders.url)
    assert (code, "answers 5 % of the requests" in out) == (0, True)
    code, out, _ = fovea("versions", "plus", "--history", "--url", adders.url)
    assert (code, "canary 4: 0 requests answered" in out) == (0, True)
    code, out, _ = fovea("rollback", "plus", "--url", adders.url)
    assert (code, out) == (0, "The canary ended: version 1 of plus stays current.\n")
    code, out, _ = fovea("versions", "plus", "--history", "--url", adders.url, "--json")
    assert (code, "canary" in json.loads(out), json.loads(out)["current"]) == (0, False, "1")
    # In pages, from the newest back; and so without a server.
    whole = [each["number"] for each in json.loads(out)["events"]]
    assert whole == [*range(1, len(whole) + 1)]
    url = f"{adders.url}/v1/models/plus/history"
    pages = [
        [each["number"] for each in httpx.get(url, params=given).json()["events"]]
        for given in ({"limit": 2}, {"limit": 2, "before": len(whole) - 1}, {"before": 1})
    ]
    assert pages == [whole[-2:], whole[-4:-2], []]
    assert httpx.get(url, params={"limit": 0}).status_code == 422
    path = adders.log.parent / "r"
    code, out, _ = fovea("versions", "plus", "--history", "--repository", path, "--limit", 2)
    assert (code, f"not shown: {len(whole) - 2} earlier events" in out) == (0, True)


def test_keys_name_who_promotes_and_a_request_that_a_canary_fails_is_charged_once(adders, tmp_path):
    folder, keys = shutil.copytree(adders.log.parent / "r", tmp_path / "r"), tmp_path / "keys.json"
    predicts, controls = (
        {"authorization": f"Bearer {key('add', name, '--keys', keys, *flags)}"}
        for name, *flags in (("eve", "--quota", "8/month"), ("anna", "--scope", "control"))
    )
    server = start_server(folder, tmp_path, ["--keys", str(keys)])
    try:
        plan = {"version": 3, "canary": 0.5, "who": "somebody"}
        assert post(server, "promote", "plus", headers=predicts, **plan).status_code == 403
        started = post(server, "promote", "plus", headers=controls, **plan)
        assert started.json()["events"][-1]["who"] == "anna"
        with httpx.Client(base_url=server.url, timeout=60, headers=predicts) as client:
            assert {ask(client) for _ in range(8)} == {"1"}
            with pytest.raises(AssertionError, match="0 of 8 images"):
                ask(client)

        def last_action():
            url = f"{server.url}/v1/models/plus/history"
            return httpx.get(url, headers=controls).json()["events"][-1]["action"]

        until(lambda: last_action() == "canary_failed")
    finally:
        server.stop()


def test_a_sequence_stays_with_the_version_that_began_it(adders):
    with httpx.Client(base_url=adders.url, timeout=60) as client:
        begun = ask(client, model="kept", sequence_id=7, sequence_start=True)
        for version in ("1", "2"):
            assert post(adders, "promote", "kept", version=int(version)).status_code == 200
            assert ask(client, model="kept", sequence_id=7) == begun == "2"
            assert ask(client, model="kept", sequence_id=8, sequence_start=True) == version
        assert ask(client, model="kept", sequence_id=7, sequence_end=True) == begun
        with pytest.raises(AssertionError, match="must specify the START flag"):
            ask(client, model="kept", sequence_id=7)


def test_a_repository_that_cannot_be_written_says_what_to_do(adders, fovea, tmp_path):
    disk = tmp_path / "disk"
    shutil.copytree(adders.log.parent / "r" / "one", disk / "one")
    mounted = ["mount", "--bind", str(disk), str(disk)], ["mount", "-o", "remount,ro", str(disk)]
    if subprocess.run(mounted[0], capture_output=True, check=False).returncode:
        pytest.skip("a file system can be mounted by root alone")
    try:
        if subprocess.run(mounted[1], capture_output=True, check=False).returncode:
            subprocess.run(["mount", "-o", "remount,ro,bind", str(disk)], check=True)
        code, _, err = fovea("promote", "one", 1, "--repository", disk)
        assert (code, "one/history.jsonl" in err) == (1, True), err
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)
