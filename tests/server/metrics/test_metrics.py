"""The metrics on their port: Triton's families, and Fovea's own, as Prometheus reads them."""

import asyncio
import platform
import resource
import shutil
import socket
from contextlib import ExitStack, asynccontextmanager, suppress
from importlib.metadata import version
from pathlib import Path

import grpc
import httpx
import numpy as np
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.conftest import DEMO
from tests.server.metrics.conftest import EXPLICIT, scrape, series
from tests.serving import start_server
from tritonclient.grpc import InferenceServerClient, InferInput
from tritonclient.utils import InferenceServerException

from fovea_engines.results.options import PredictOptions
from fovea_preprocess.errors import InvalidRequest, Unavailable
from fovea_server.app import build_app
from fovea_server.byte_budget import Reservation
from fovea_server.dataplane.prediction import PredictRequest
from fovea_server.dataplane.service import Service
from fovea_server.metrics.listener import MetricsServer
from fovea_server.settings import Settings
from fovea_server.tensors.messages import InferRequest, InputTensor

pytestmark = pytest.mark.slow

SIMPLE = {"model": "simple", "version": "1"}
COUNTERS = [
    "nv_inference_request_success",
    "nv_inference_count",
    "nv_inference_exec_count",
    "nv_inference_request_duration_us",
    "nv_inference_queue_duration_us",
    "nv_inference_compute_input_duration_us",
    "nv_inference_compute_infer_duration_us",
    "nv_inference_compute_output_duration_us",
]


@asynccontextmanager
async def serving(repository: Path, **settings):
    """A server of a repository's metrics, with all models loaded: the service and an address."""
    chosen = Settings(model_repository=repository, metrics_port=0, **settings)
    app = build_app(chosen)
    service, registry = app.service, app.registry
    registry.start()
    server = MetricsServer(service, app.features)
    await server.start()
    try:
        while registry.reason:
            await asyncio.sleep(0.02)
        yield service, f"http://127.0.0.1:{server.port}"
    finally:
        await server.stop(5)
        await asyncio.to_thread(registry.close)


@pytest.fixture(scope="module")
def repository(shared, tmp_path_factory) -> Path:
    """The model "simple", with a tag, and one that keeps its answers."""
    folder = tmp_path_factory.mktemp("metrics")
    for name in ("simple", "simple_cache"):
        shutil.copytree(shared / "data" / "triton" / "models" / name, folder / name)
        (folder / name).chmod(0o755)
    config = folder / "simple" / "config.pbtxt"
    config.chmod(0o644)
    config.write_text(config.read_text() + 'metric_tags { key: "my-team" value: "a\\"b" }')
    return folder


def request(model: str = "simple", inputs: int = 2) -> InferRequest:
    data = memoryview(np.arange(16, dtype=np.int32).tobytes())
    tensors = [InputTensor(f"INPUT{n}", "INT32", (1, 16), data) for n in range(inputs)]
    return InferRequest(model, None, tensors)


async def infer(service: Service, asked: InferRequest) -> None:
    reservation = Reservation(service.budget)
    await service.plane.infer(service.models.find(asked.model_name), asked, reservation)
    reservation.release()


async def read(address: str) -> tuple[str, dict[tuple[str, frozenset], float]]:
    async with httpx.AsyncClient() as client:
        answer = await client.get(f"{address}/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    return answer.text, {
        # The parser ends the names of counters in _total, where the text does not.
        (sample.name.removesuffix("_total"), frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def of(values: dict, name: str, **labels: str) -> float:
    found = [v for (n, have), v in values.items() if n == name and labels.items() <= set(have)]
    assert len(found) == 1, (name, labels, found)
    return found[0]


def test_counters_are_there_from_load_on_and_count(repository):
    async def run() -> None:
        async with serving(repository) as (service, address):
            _, before = await read(address)
            for name in COUNTERS:
                assert of(before, name, **SIMPLE) == 0
            for reason in ("OTHER", "CANCELED", "REJECTED", "BACKEND"):
                assert of(before, "nv_inference_request_failure", reason=reason, **SIMPLE) == 0
            assert of(before, "nv_inference_pending_request_count", **SIMPLE) == 0
            for _ in range(3):
                await infer(service, request())
            with pytest.raises(InvalidRequest):
                await infer(service, request(inputs=1))
            _, after = await read(address)
            for name in ("request_success", "count", "exec_count"):
                assert of(after, f"nv_inference_{name}", **SIMPLE) == 3
            assert of(after, "nv_inference_request_duration_us", **SIMPLE) > 0
            assert of(after, "nv_inference_count", model="simple_cache") == 0

    asyncio.run(run())


def test_tags_of_a_model_are_labels_of_all_its_metrics(repository):
    async def run() -> None:
        async with serving(repository) as (_, address):
            text, values = await read(address)
            labels = {**SIMPLE, "_my_team": 'a"b'}
            assert of(values, "nv_inference_count", **labels) == 0
            assert '_my_team="a\\"b"' in text

    asyncio.run(run())


def test_a_cache_is_told_where_there_is_one(repository):
    async def run() -> None:
        async with serving(repository) as (_, address):
            text, _ = await read(address)
            assert "nv_cache_num_entries" not in text
        async with serving(repository, cache_config="local,size=100000") as (service, address):
            for _ in range(3):
                await infer(service, request("simple_cache"))
            text, values = await read(address)
            model = {"model": "simple_cache", "version": "1"}
            assert of(values, "nv_cache_num_hits_per_model", **model) == 2
            assert of(values, "nv_cache_num_misses_per_model", **model) == 1
            assert 'nv_cache_num_hits_per_model{model="simple"' not in text
            assert of(values, "nv_cache_num_hits") == 2
            assert of(values, "nv_cache_num_lookups") == 3
            assert of(values, "nv_cache_num_entries") == 1
            assert 0 < of(values, "nv_cache_util") < 1

    asyncio.run(run())


def test_the_machine_is_told(repository):
    async def run() -> None:
        async with serving(repository) as (_, address):
            _, values = await read(address)
            assert 0 <= of(values, "nv_cpu_utilization") <= 1
            total = of(values, "nv_cpu_memory_total_bytes")
            assert 0 < of(values, "nv_cpu_memory_used_bytes") < total
            assert of(values, "nv_pinned_memory_pool_used_bytes") == 0

    asyncio.run(run())


def test_the_process_and_the_build_are_told(repository):
    async def run() -> None:
        async with serving(repository) as (_, address):
            text, values = await read(address)
            here = psutil.Process()
            rss = of(values, "process_resident_memory_bytes")
            assert rss == pytest.approx(here.memory_info().rss, rel=0.5)
            assert of(values, "process_virtual_memory_bytes") >= rss
            assert of(values, "process_max_fds") == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            with ExitStack() as files:
                before = of(values, "process_open_fds")
                for _ in range(20):
                    files.enter_context(Path("/dev/null").open())
                _, values = await read(address)
                assert before + 15 <= of(values, "process_open_fds") <= before + 25
            assert of(values, "process_start_time_seconds") == pytest.approx(here.create_time())
            assert 0 < of(values, "process_cpu_seconds") <= sum(here.cpu_times()[:2])
            assert "# TYPE process_cpu_seconds_total counter" in text
            build = {"version": version("fovea-serve"), "python": platform.python_version()}
            assert of(values, "fovea_build_info", **build) == 1

    asyncio.run(run())


def test_stages_of_images_are_told(demo_batches):
    image = (DEMO / "scene-1.jpg").read_bytes()

    async def run() -> None:
        async with serving(demo_batches) as (service, address):
            _, before = await read(address)
            name = "fovea_stage_duration_seconds"
            assert of(before, f"{name}_count", stage="decode", model="digits") == 0
            for data in (image, image, b"no image"):
                model = service.models.get("digits")
                await service.plane.predict(PredictRequest(model, None, [data], PredictOptions()))
            _, after = await read(address)
            for stage in ("decode", "letterbox", "queue", "infer", "postprocess"):
                labels = {"stage": stage, "model": "digits", "version": "1"}
                assert of(after, f"{name}_count", **labels) == 2
                assert of(after, f"{name}_bucket", le="+Inf", **labels) == 2
                assert of(after, f"{name}_sum", **labels) > 0
            assert of(after, "nv_inference_request_success", model="digits") == 2
            assert of(after, "nv_inference_exec_count", model="digits") == 2
            failure = "nv_inference_request_failure"
            assert of(after, failure, model="digits", reason="OTHER") == 1

    asyncio.run(run())


def test_other_paths_and_methods_are_answered_as_triton_does(repository):
    async def run() -> None:
        async with serving(repository) as (_, address), httpx.AsyncClient() as client:
            answer = await client.get(f"{address}/foo")
            assert (answer.status_code, answer.content) == (200, b"")
            assert answer.headers["content-type"] == "text/plain; charset=utf-8"
            answer = await client.post(f"{address}/metrics", content=b"x")
            assert (answer.status_code, answer.text) == (405, '{"error":"Method Not Allowed"}')
            assert answer.headers["content-type"] == "text/plain"

    asyncio.run(run())


def test_a_port_that_is_taken_is_told(repository):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = Settings(model_repository=repository, metrics_port=taken.getsockname()[1])
        server = MetricsServer(build_app(settings).service)
        with pytest.raises(Unavailable):
            asyncio.run(server.start())


def test_stopping_closes_connections_that_are_idle(repository):
    async def run() -> None:
        async with serving(repository) as (_, address):
            client = httpx.AsyncClient()
            await client.get(f"{address}/foo")
        with pytest.raises(httpx.TransportError):
            await client.get(f"{address}/foo")
        await client.aclose()

    asyncio.run(run())


NAMES = 200


def count(server) -> int:
    return sum(map(len, series(scrape(server)).values()))


@pytest.fixture
def server(demo_repository, tmp_path):
    server = start_server(demo_repository, tmp_path, (*EXPLICIT, "--log-access=false"))
    yield server
    assert server.stop() == 0


def test_unknown_models_add_no_series(server):
    tensor = InferInput("x", (1,), "FP32")
    tensor.set_data_from_numpy(np.zeros(1, np.float32))
    address = f"127.0.0.1:{server.grpc_port}"
    with httpx.Client(base_url=server.url) as http, InferenceServerClient(address) as rpc:

        def ask(name: str) -> None:
            """Use the name wherever a client may name a model."""
            assert http.post(f"/v1/models/{name}/predict", content=b"x").status_code == 404
            assert http.post(f"/v2/models/{name}/infer", json={}).status_code in (400, 404)
            assert http.get(f"/v1/models/{name}/statistics").status_code == 404
            with pytest.raises(InferenceServerException, match="not found"):
                rpc.infer(name, [tensor])

        # A request is counted after its answer is sent: of the second each kind has been.
        ask("first")
        ask("second")
        before = count(server)
        for number in range(NAMES):
            ask(f"unknown-{number}")
        assert count(server) == before


def test_names_in_other_places_add_no_series(server):
    image, tensor = (DEMO / "scene-1.jpg").read_bytes(), InferInput("x", (1,), "FP32")
    tensor.set_data_from_numpy(np.zeros(1, np.float32))
    address = f"127.0.0.1:{server.grpc_port}"
    with (
        httpx.Client(base_url=server.url) as http,
        InferenceServerClient(address) as rpc,
        grpc.insecure_channel(address) as channel,
    ):

        def ask(name: str, version: int) -> None:
            """Use them as a version, a method, a path, an option and in headers."""
            for missing in (name, version):
                path = f"models/digits/versions/{missing}"
                assert http.post(f"/v1/{path}/predict", content=image).status_code >= 400
                assert http.post(f"/v2/{path}/infer", json={}).status_code >= 400
                with pytest.raises(InferenceServerException):
                    rpc.infer("digits", [tensor], model_version=str(missing))
            assert http.request(name.upper(), "/v1/models/digits/predict").status_code >= 400
            assert http.get(f"/{name}").status_code == 404
            options = {"params": {name: "1"}, "headers": {"x-request-id": name, "user-agent": name}}
            assert http.post("/v1/models/digits/predict", content=b"", **options).status_code >= 400
            with suppress(grpc.RpcError):
                channel.unary_unary(f"/inference.GRPCInferenceService/{name}")(b"")

        ask("first", 1_000_000)
        before = count(server)
        for number in range(NAMES):
            ask(f"other{number}", 2 + number)
        assert count(server) == before


def test_loads_of_unknown_models_add_no_series(server):
    with httpx.Client(base_url=server.url) as http:

        def ask(name: str) -> None:
            assert http.post(f"/v2/repository/models/{name}/load", json={}).status_code >= 400
            http.post(f"/v2/repository/models/{name}/unload", json={})

        ask("first")
        before = count(server)
        for number in range(NAMES):
            ask(f"other{number}")
        assert count(server) == before
