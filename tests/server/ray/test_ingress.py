"""The ingress, with a replica in its own process."""

import asyncio
from pathlib import Path
from typing import Any

import orjson
import pytest

pytest.importorskip("ray")
from tests.server.ray.handles import Handle
from tritonclient.grpc import service_pb2 as messages

from fovea_cluster.ray.faults import Fault, tell
from fovea_cluster.ray.forwarder import Forwarder
from fovea_cluster.ray.ingress import IngressApp
from fovea_cluster.ray.messages import HttpRequest, asked
from fovea_cluster.ray.replica import Serving
from fovea_cluster.ray.servicer import Servicer
from fovea_server.keys.key import digest_of, new_token
from fovea_server.settings import Settings

PAGE = (b"origin", b"https://page.example")
SECRET = "triton-grpc-protocol-admin"
PREDICT = "/v1/models/digits/predict"


class Context:
    """A double for the context of Ray's gRPC proxy."""

    code = ""

    def __init__(self, *metadata: tuple[str, str]) -> None:
        self._metadata = metadata

    def invocation_metadata(self):
        return self._metadata

    def peer(self):
        return "ipv4:127.0.0.1:1"

    def set_code(self, code):
        self.code = code.name

    def set_details(self, details):
        pass

    def set_trailing_metadata(self, metadata):
        pass


@pytest.fixture
def make(demo_repository):
    """Make the ingress and a replica."""
    running = []

    def made(**given: object) -> tuple[Serving, Serving]:
        settings = Settings(model_repository=(demo_repository,), **given).model_dump()
        running.append(Serving(settings, ("digits",), described=True))
        running.append(Serving(settings, ("digits",)))
        return running[-2], running[-1]

    yield made
    for serving in running:
        serving.close()


def forwarders(replica: Serving) -> dict[str, Forwarder]:
    async def answer(*given: Any) -> Any:
        if isinstance(given[0], HttpRequest):
            return await asked(replica.surface, given[0])
        version, v2 = given
        return replica.statistics("digits", version, v2=v2)

    return {"digits": Forwarder("digits", Handle(answer), keeps_state=False)}


def zeros() -> bytes:
    """A request with an image of zeros."""
    request = messages.ModelInferRequest(model_name="digits")
    request.inputs.add(name="images", datatype="FP32", shape=[1, 3, 320, 320])
    request.raw_input_contents.append(bytes(4 * 3 * 320 * 320))
    return request.SerializeToString()


def image() -> bytes:
    demo = Path(__file__).parents[3] / "server/fovea_server/demo"
    return (demo / "scene-1.jpg").read_bytes()


def test_counters_that_are_restricted_are_those_of_the_replicas(make):
    ingress, replica = make(
        http_restricted_api=("statistics:Admin=http",),
        grpc_restricted_protocol=("statistics:admin=grpc",),
    )

    async def run() -> None:
        ways = forwarders(replica)
        app, servicer = IngressApp(ingress, ways), Servicer(ingress, ways)
        async with replica.surface.lifespan(), ingress.surface.lifespan():
            sent = HttpRequest("POST", PREDICT.encode(), b"", [], image())
            assert (await asked(app, sent)).status == 200
            for path in ("/v2/models/stats", "/v2/models/digits/stats"):
                secret = [(b"admin", b"http"), (b"accept-encoding", b"gzip")]
                allowed = await asked(app, HttpRequest("GET", path.encode(), b"", secret, b""))
                [found] = orjson.loads(allowed.body)["model_stats"]
                assert found["inference_count"] == 1
                refused = await asked(app, HttpRequest("GET", path.encode(), b"", [], b""))
                assert refused.status == 403
            request = messages.ModelStatisticsRequest(name="digits").SerializeToString()
            encoded = await servicer.ModelStatistics(request, Context((SECRET, "grpc")))
            data = encoded.SerializeToString()
            [counted] = messages.ModelStatisticsResponse.FromString(data).model_stats
            assert counted.inference_count == 1
            stranger = Context((SECRET, "http"))
            await servicer.ModelStatistics(request, stranger)
            assert stranger.code == "UNAVAILABLE"

    asyncio.run(run())


def test_keys_hold_in_the_ingress_and_for_each_request_of_a_stream(make, tmp_path):
    file, tokens = tmp_path / "keys.json", {name: new_token() for name in ("cam", "all")}
    entries = [
        {
            "name": name,
            "secrets": [{"sha256": digest_of(token)}],
            "scopes": ["predict"],
            "created": "2026-11-26T00:00:00Z",
            "models": ["cam-*"] if name == "cam" else [],
            "quota": "2/month",
        }
        for name, token in tokens.items()
    ]
    file.write_bytes(orjson.dumps({"keys": entries}))
    ingress, replica = make(keys_file=file)

    async def status(app: Any, method: str, path: str, key: str | None) -> int:
        headers = [] if key is None else [(b"x-api-key", tokens[key].encode())]
        sent = HttpRequest(method, path.encode(), b"", headers, image(), "127.0.0.1")
        return (await asked(app, sent)).status

    async def run() -> None:
        app = IngressApp(ingress, forwarders(replica))
        async with replica.surface.lifespan(), ingress.surface.lifespan():
            for path in ("/v1/models/digits/statistics", "/v2/models/stats", "/v1/models"):
                assert await status(app, "GET", path, None) == 401
                assert await status(app, "GET", path, "all") == 200
            assert await status(app, "GET", "/v1/models/digits/statistics", "cam") == 403
            assert await status(app, "POST", PREDICT, None) == 401
            assert await status(app, "POST", PREDICT, "cam") == 403
            assert await status(app, "POST", PREDICT, "all") == 200
            # A stream's requests come to the replica with the key alone.
            for key, said in (
                ("cam", "is not for this model"),
                ("all", None),
                ("all", "has 0 of its 2 images"),
            ):
                answer = (await replica.streamed(zeros(), tokens[key])).answer
                assert isinstance(answer, bytes) if said is None else said in str(answer), answer

    asyncio.run(run())


def test_pages_may_read_what_the_ingress_answers_itself(make):
    ingress, replica = make(cors_origin=("https://page.example",), http_max_input_size=100_000)

    async def run() -> None:
        app = IngressApp(ingress, forwarders(replica))
        async with replica.surface.lifespan(), ingress.surface.lifespan():
            for method, path, body, status in (
                ("POST", PREDICT, bytes(200_000), 413),
                ("POST", "/v2/models/digits/infer", bytes(200_000), 400),
                ("POST", PREDICT, image(), 200),
                ("GET", "/v2/models/stats", b"", 200),
                ("GET", "/v1/models/digits/statistics", b"", 200),
            ):
                sent = HttpRequest(method, path.encode(), b"", [PAGE], body, "127.0.0.1")
                answer = await asked(app, sent)
                assert answer.status == status, (path, answer.body)
                allowed = [
                    v for name, v in answer.headers if name == b"access-control-allow-origin"
                ]
                assert allowed == [b"https://page.example"], path

    asyncio.run(run())


def test_a_model_whose_replicas_do_not_start_is_not_ready(make):
    ingress, _ = make()
    ways = {"digits": Forwarder("digits", Handle(None), keeps_state=False)}
    app, servicer = IngressApp(ingress, ways), Servicer(ingress, ways)

    async def statuses() -> list[int]:
        paths = ("/v2/health/ready", "/v2/models/digits/ready", "/v1/models/digits/ready")
        asked_for = [HttpRequest("GET", path.encode(), b"", [], b"") for path in paths]
        return [(await asked(app, request)).status for request in asked_for]

    async def run() -> None:
        async with ingress.surface.lifespan():
            assert await statuses() == [200] * 3
            tell({"digits": Fault("no engine", stopping=False)}, ingress.models, ways)
            assert 200 not in await statuses()
            listing = HttpRequest("GET", b"/v1/models", b"", [], b"", "127.0.0.1")
            listed = await asked(app, listing)
            [model] = orjson.loads(listed.body)["models"]
            assert not model["ready"]
            refused = await asked(app, HttpRequest("POST", PREDICT.encode(), b"", [], image()))
            assert (refused.status, b"no engine" in refused.body) == (503, True)
            call = Context()
            request = messages.ModelInferRequest(model_name="digits").SerializeToString()
            await servicer.ModelInfer(request, call)
            assert call.code == "UNAVAILABLE"
            # What the ingress answers itself is in its metrics.
            counted = {
                labels["status"]: value
                for suffix, labels, value in ingress.service.traffic.durations.family().samples
                if suffix == "_count"
            }
            assert (counted["503"], counted["UNAVAILABLE"]) == (1, 1)
            tell({}, ingress.models, ways)
            assert await statuses() == [200] * 3

    asyncio.run(run())


def test_bytes_of_grpc_are_counted_while_they_are_held(make):
    ingress, _ = make()
    request = messages.ModelInferRequest(model_name="digits").SerializeToString()
    held = []

    async def fails(*_: object) -> None:
        held.append(ingress.service.budget.held)
        raise asyncio.CancelledError

    async def run() -> None:
        ways = {"digits": Forwarder("digits", Handle(fails), keeps_state=False)}
        servicer = Servicer(ingress, ways)
        with pytest.raises(asyncio.CancelledError):
            await servicer.ModelInfer(request, Context())

    asyncio.run(run())
    assert held == [len(request)]
    assert ingress.service.budget.held == 0


def test_pages_of_others_are_refused_whoever_would_answer(make):
    ingress, replica = make()
    foreign = (
        [(b"host", b"evil.example")],
        [(b"host", b"localhost"), (b"origin", b"http://evil.example")],
    )

    async def run() -> None:
        app = IngressApp(ingress, forwarders(replica))
        async with replica.surface.lifespan(), ingress.surface.lifespan():
            for path in ("/v2/models/stats", "/v1/models/digits/statistics", "/v1/models"):
                asked_for = HttpRequest("GET", path.encode(), b"", foreign[0], b"")
                assert (await asked(app, asked_for)).status == 403
            for path in (PREDICT, "/v2/models/digits/infer", "/v2/logging"):
                for headers in foreign:
                    sent = HttpRequest("POST", path.encode(), b"", headers, image())
                    assert (await asked(app, sent)).status == 403
            assert (
                await asked(app, HttpRequest("POST", PREDICT.encode(), b"", [], image()))
            ).status == 200

    asyncio.run(run())
    counted = replica.service.traffic.durations.family()
    # None of them got as far as a replica.
    assert not any("403" in str(sample) for sample in counted.samples)
