"""Numbers in a model's configuration that would take the server down, and a stop meanwhile."""

import base64
import json
import signal
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import numpy as np
import onnx
import psutil
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.server.registries import ADDER_CONFIG, adder, chain, wait_until
from tests.serving import free_ports, start_server

pytestmark = pytest.mark.slow

MILLION = 1_000_000
CONFIG = {
    "max_batch_size": 8,
    "input": [{"name": "X", "data_type": "TYPE_INT32", "dims": [4]}],
    "output": [{"name": "Y", "data_type": "TYPE_INT32", "dims": [4]}],
}


def sample(**given: object) -> dict[str, object]:
    """A configuration with a warm-up."""
    zeros = {"data_type": "TYPE_INT32", "dims": given.pop("dims", [4]), "zero_data": True}
    return {"model_warmup": [{"name": "s", "inputs": {"X": zeros}, **given}]}


def state(*dims: int) -> dict[str, object]:
    """A configuration of sequences that begin with zeros."""
    zeros = {"name": "z", "data_type": "TYPE_INT32", "dims": dims, "zero_data": True}
    tensors = {"input_name": "X", "output_name": "Y", "data_type": "TYPE_INT32", "dims": dims}
    return {"sequence_batching": {"state": [{**tensors, "initial_state": [zeros]}]}, "input": []}


COSTLY = {
    "instances": ({"instance_group": [{"count": MILLION}]}, "1000000 instances, and "),
    "groups": ({"instance_group": [{"count": 40}] * 40}, "1600 instances, and "),
    "gpus": ({"instance_group": [{"count": 40, "gpus": list(range(40))}]}, "1600 instances"),
    "runs": (sample(count=MILLION), "1000000 runs, and 10000 are the most"),
    "rows": ({"max_batch_size": 10**9, **sample(batch_size=10**9)}, "lower its batch_size"),
    "dims": (sample(dims=[MILLION, MILLION]), "lower its batch_size or dims"),
    "state": (state(MILLION, MILLION), "state 'X'"),
}


@pytest.fixture(scope="module")
def amounts(tmp_path_factory):
    """A server whose models are loaded by requests."""
    repository = tmp_path_factory.mktemp("amounts")
    adder(repository, "adder", config=ADDER_CONFIG)
    below = deep = "adder"
    for level in range(40):
        deep = chain(repository, f"deep{level}", deep).name
    for level in range(9):
        below = chain(repository, f"double{level}", below, below).name
    server = start_server(repository, repository, ["--model-control-mode=explicit"])
    yield server
    assert server.stop() == 0


@pytest.mark.parametrize("upload", [False, True], ids=["override", "upload"])
@pytest.mark.parametrize("asked", COSTLY)
def test_a_number_that_costs_is_refused(amounts, tmp_path, asked, upload):
    given, said = COSTLY[asked]
    parameters: dict[str, object] = {"config": json.dumps(CONFIG | given)}
    if upload:
        model = adder(tmp_path, "adder") / "1" / "model.onnx"
        parameters["file:1/model.onnx"] = base64.b64encode(model.read_bytes()).decode()
    process = psutil.Process(amounts.process.pid)
    threads, memory = process.num_threads(), process.memory_info().rss
    url = f"{amounts.url}/v2/repository/models/adder/load"
    answer = httpx.post(url, json={"parameters": parameters}, timeout=60)
    assert answer.status_code == 400
    assert said in answer.json()["error"]
    assert process.num_threads() <= threads + 8  # of the pool that loads
    assert process.memory_info().rss < memory + (200 << 20)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("deep39", "more than 32 ensembles run one another"),
        ("double8", "a request to it would run 511 models and ensembles, and 256 are the most"),
    ],
)
def test_ensembles_that_multiply_are_refused(amounts, name, said):
    answer = httpx.post(f"{amounts.url}/v2/repository/models/{name}/load", timeout=60)
    assert answer.status_code == 400
    assert said in answer.json()["error"]


def test_numbers_that_cost_nothing_are_taken(amounts):
    for given in (
        {"max_batch_size": 10**9},
        {"dynamic_batching": {"priority_levels": 10**9, "default_priority_level": 1}},
        {"dynamic_batching": {"max_queue_delay_microseconds": 10**9}},
        {"instance_group": [{"count": 64, "rate_limiter": {"priority": 10**9}}]},
        {"parameters": {"INFERENCE_NUM_THREADS": {"string_value": "1000000"}}},
    ):
        parameters = {"config": json.dumps(CONFIG | given)}
        url = f"{amounts.url}/v2/repository/models/adder/load"
        answer = httpx.post(url, json={"parameters": parameters}, timeout=60)
        assert answer.status_code == 200, (given, answer.text)
    assert psutil.Process(amounts.process.pid).num_threads() < 200


def endless(repository: Path) -> None:
    """Write a model whose warm-up computes for days in one call, which nothing interrupts."""
    integer, boolean = TensorProto.INT64, TensorProto.BOOL
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["going"], ["goes_on"]),
            helper.make_node("Add", ["before", "one"], ["after"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("turn", integer, []),
            helper.make_tensor_value_info("going", boolean, []),
            helper.make_tensor_value_info("before", integer, ["N", 1]),
        ],
        [
            helper.make_tensor_value_info("goes_on", boolean, []),
            helper.make_tensor_value_info("after", integer, ["N", 1]),
        ],
    )
    graph = helper.make_graph(
        [helper.make_node("Loop", ["turns", "yes", "X"], ["Y"], body=body)],
        "endless",
        [helper.make_tensor_value_info("X", integer, ["N", 1])],
        [helper.make_tensor_value_info("Y", integer, ["N", 1])],
        [
            numpy_helper.from_array(np.array(2**60), "turns"),
            numpy_helper.from_array(np.array(True), "yes"),
            numpy_helper.from_array(np.array([[1]]), "one"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    folder = repository / "endless"
    (folder / "1").mkdir(parents=True)
    onnx.save(model, folder / "1" / "model.onnx")
    zeros = "data_type: TYPE_INT64 dims: [ 1 ] zero_data: true"
    (folder / "config.pbtxt").write_text(
        f'model_warmup {{ name: "s" batch_size: 1 inputs {{ key: "X" value {{ {zeros} }} }} }}'
    )


@pytest.mark.parametrize("flags", [(), ("--model-control-mode=explicit",), ("--exit-on-error",)])
def test_a_stop_does_not_wait_for_native_code(tmp_path, flags):
    """The end comes within the time for requests and five seconds, whatever is being loaded."""
    endless(tmp_path / "repository")
    (port,) = free_ports(1)
    given = [f"--http-port={port}", "--allow-grpc=false", "--allow-metrics=false"]
    given += ["--log-verbose=1", "--exit-timeout-secs=0", *flags]
    command = [sys.executable, "-m", "fovea_server.cli.main", "serve", tmp_path / "repository"]
    log = tmp_path / "log"
    with log.open("w") as stream, subprocess.Popen([*command, *given], stderr=stream) as server:
        if "--model-control-mode=explicit" in flags:
            wait_until(lambda: f"port {port};" in log.read_text())
            url = f"http://127.0.0.1:{port}/v2/repository/models/endless/load"
            asking = threading.Thread(target=lambda: httpx.post(url, timeout=60))
            asking.start()
            wait_until(lambda: "warm-up sample s" in log.read_text())
            server.send_signal(signal.SIGTERM)
            asking.join()
        else:
            wait_until(lambda: "warm-up sample s" in log.read_text())
            server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0
    assert "the server ends now: something did not stop" in log.read_text()


def test_a_stop_interrupts_a_warm_up(serve, tmp_path):
    """Ten thousand runs of a model that is quick."""
    folder = adder(tmp_path / "repository", "adder", shape=("N", 4_000_000))
    zeros = "data_type: TYPE_INT32 dims: [ 4000000 ] zero_data: true"
    inputs = f'inputs {{ key: "X" value {{ {zeros} }} }}'
    (folder / "config.pbtxt").write_text(
        f'model_warmup {{ name: "s" batch_size: 1 count: 10000 {inputs} }}'
    )
    server = serve(tmp_path / "repository", "--log-verbose=1", wait=False)
    wait_until(lambda: "warm-up sample s" in server.log.read_text())
    assert server.stop() == 0
    assert "the server ends now" not in server.log.read_text()
    assert server.log.read_text().rstrip().endswith("stopped")


def test_threads_that_cannot_be_started_end_again(tmp_path):
    """A model for which there is no room fails alone; no thread of it stays."""
    adder(tmp_path, "adder", config=ADDER_CONFIG + "instance_group { count: 60 }")
    program = """
import resource, sys, threading
from pathlib import Path
from tests.server.registries import serving
from fovea_preprocess.errors import InvalidRequest
with serving(Path(sys.argv[1]), model_control_mode="explicit") as registry:
    registry.load("adder")
    registry.unload("adder")
    before = threading.active_count()
    used = int(Path("/proc/self/statm").read_text().split()[0]) * 4096
    resource.setrlimit(resource.RLIMIT_AS, (used + (150 << 20),) * 2)
    threading.stack_size(8 << 20)
    try:
        registry.load("adder")
    except InvalidRequest as error:
        print(str(error).strip())
    print(threading.active_count() - before)
"""
    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path], capture_output=True, text=True, check=True
    )
    said, left = done.stdout.strip().splitlines()
    assert "threads of model 'adder' could be started (can't start new thread)" in said
    assert left == "0"
