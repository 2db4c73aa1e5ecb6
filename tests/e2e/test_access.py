"""Ten kinds of client at every route, WebSocket, RPC and dialect: who may, and who may not.

A route that is not listed here fails the test: it says which need it has.
"""

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import grpc
import httpx
import pytest
from google.protobuf.message import Message
from tests.keyed import key
from tests.serving import RunningServer, start_server
from tritonclient.grpc import service_pb2
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from fovea_server.grpc.methods import METHODS
from fovea_server.http.v2.routes import ROUTES

pytestmark = pytest.mark.slow

FLAGS = (
    *("--api=roboflow", "--api=label-studio", "--api=deepstack"),
    *("--model-control-mode=explicit", "--load-model=digits", "--allow-client-shm"),
    *("--allow-url", "--url-allow-host=127.0.0.1"),
)
CLIENTS = {
    "no key": {},
    "wrong key": {"x-api-key": "fov_wrong"},
    "predict": {},
    "predict elsewhere": {},
    "metrics": {},
    "cameras": {},
    "control": {},
    "control of digits": {},
    "local program": {},
    "stranger behind a proxy": {"x-forwarded-for": "203.0.113.9"},
}
KEYS = {
    "predict": ("--scope", "predict"),
    "predict elsewhere": ("--scope", "predict", "--model", "cam-*"),
    "metrics": ("--scope", "metrics"),
    "cameras": ("--scope", "cameras"),
    "control": ("--scope", "control"),
    "control of digits": ("--scope", "control", "--model", "digits"),
}
ANY_KEY = {*KEYS, "local program"}
# Who may do what; a need with a model is for keys of that model alone.
MAY: Mapping[str, set[str]] = {
    "open": set(CLIENTS),
    "infer": {"predict", "local program", "stranger behind a proxy"},
    "infer some": {
        *("predict", "predict elsewhere", "local program", "stranger behind a proxy"),
    },
    "list": ANY_KEY,
    "read": ANY_KEY - {"predict elsewhere"},
    "see": {"cameras", "control", "control of digits", "local program"},
    "control": {"control", "control of digits", "local program"},
    "control all": {"control", "local program"},
    "metrics": {"metrics", "local program"},
    # For a key of another model there is no such stream.
    "change a stream": {"control", "control of digits", "local program", "predict elsewhere"},
}


@dataclass(frozen=True)
class Asked:
    """A request, and what it takes."""

    method: str
    path: str
    needs: str
    body: object = field(default_factory=dict)


FORM = {"image": b"an image"}
M = "/v1/models/{name}"
V = "/v1/models/{name}/versions/{version}"
S = "/v1/streams/{stream}"
ROBOFLOW = {"model_id": "digits/1", "image": {"type": "base64", "value": ""}}
STREAM = {"id": "new", "model": "digits", "source": "rtsp://127.0.0.1:9/x"}
# Without a name in the address a key asks the models that it is for.
NEEDS_SOME = {"infer": "infer some", "read": "list"}
V1 = [
    *(
        Asked("POST", f"{start}/{operation}", "infer")
        for start in (M, V)
        for operation in ("predict", "predict/form", "predict/json", "annotate", "embed", "search")
    ),
    *(Asked("GET", f"{start}/search", "infer") for start in (M, V)),
    Asked("GET", "/v1/models", "list"),
    *(Asked("GET", path, "read") for path in (M, V, f"{M}/statistics", f"{M}/drift")),
    *(Asked("GET", f"{M}/{what}", "read") for what in ("history", "shadow", "shadow/report.md")),
    *(Asked("POST", f"{V}/{change}", "control") for change in ("load", "unload")),
    *(Asked("POST", f"{M}/{change}", "control") for change in ("promote", "rollback")),
    *(Asked(method, f"{M}/shadow", "control") for method in ("PUT", "DELETE")),
    Asked("GET", f"{M}/shadow/worst/{{picture}}", "control"),
    *(Asked("GET", path, "open") for path in (f"{M}/ready", "/v1/health/live")),
    Asked("GET", "/v1/health/ready", "open"),
    Asked("GET", "/v1/keys/self", "list"),
    Asked("GET", "/v1/streams", "list"),
    Asked("GET", S, "list"),
    *(Asked("GET", f"{S}/{what}", "see") for what in ("image", "events", "events/images/{name}")),
    Asked("POST", "/v1/streams", "control", STREAM),
    *(Asked(method, S, "change a stream") for method in ("PATCH", "DELETE")),
]
DIALECTS = [
    Asked("GET", "/model/registry", "list"),
    Asked("GET", "/info", "list"),
    Asked("POST", "/model/add", "control", {"model_id": "digits/1"}),
    Asked("POST", "/model/remove", "control", {"model_id": "digits/1"}),
    Asked("POST", "/model/clear", "control all"),
    *(
        Asked("POST", f"/infer/{task}", "infer", ROBOFLOW)
        for task in (
            *("object_detection", "instance_segmentation", "keypoints_detection", "classification"),
        )
    ),
    Asked("POST", "/{dataset}/{version}", "infer"),
    *(Asked("GET", path, "open") for path in ("/health", "/v1/status/ping")),
    *(Asked("GET", f"/label-studio/{{name}}/{what}", "open") for what in ("health",)),
    *(
        Asked(method, f"{start}/{operation}", NEEDS_SOME.get(needs, needs) if not start else needs)
        for start in ("", "/label-studio/{name}")
        for method, operation, needs in (
            ("POST", "setup", "infer"),
            ("POST", "validate", "read"),
            ("GET", "versions", "read"),
            ("POST", "versions", "read"),
            ("POST", "predict", "infer"),
            ("POST", "webhook", "infer"),
            ("POST", "train", "infer"),
        )
    ),
    *(Asked(method, "/v1/vision/custom/list", "list") for method in ("GET", "POST")),
    Asked("POST", "/v1/vision/detection", "infer some", FORM),
    Asked("POST", "/v1/vision/custom/{name}", "infer", FORM),
]
MODEL = "/v2/models/digits"
V2 = [
    *(
        Asked("POST", f"{MODEL}{version}/{what}", "infer")
        for version in ("", "/versions/1")
        for what in ("infer", "generate", "generate_stream")
    ),
    *(Asked("GET", f"/v2/health/{what}", "open") for what in ("live", "ready")),
    Asked("GET", f"{MODEL}/ready", "open"),
    Asked("GET", "/v2", "list"),
    Asked("GET", "/v2/models/stats", "list"),
    *(Asked("GET", f"{MODEL}{what}", "read") for what in ("", "/config", "/stats")),
    Asked("POST", "/v2/repository/index", "list"),
    Asked("POST", "/v2/repository/models/digits/load", "control"),
    Asked("POST", "/v2/repository/models/digits/unload", "control"),
    Asked("GET", f"{MODEL}/trace/setting", "read"),
    Asked("POST", f"{MODEL}/trace/setting", "control"),
    Asked("GET", "/v2/trace/setting", "list"),
    Asked("POST", "/v2/trace/setting", "control all"),
    Asked("GET", "/v2/logging", "list"),
    Asked("POST", "/v2/logging", "control all"),
    *(
        Asked(method, f"/v2/{kind}sharedmemory/{what}", "control all")
        for kind in ("system", "cuda")
        for method, what in (
            ("GET", "status"),
            ("POST", "region/r/register"),
            ("POST", "region/r/unregister"),
        )
    ),
]
# By the address that a request for a WebSocket names.
SOCKETS = {f"{M}/stream": "infer", f"{V}/stream": "infer", f"{S}/events": "see"}
# Requests of gRPC by the name of their method.
RPCS = {
    **dict.fromkeys(("ServerLive", "ServerReady", "ModelReady"), "open"),
    **dict.fromkeys(("ServerMetadata", "RepositoryIndex"), "list"),
    **dict.fromkeys(("ModelMetadata", "ModelConfig", "ModelStatistics"), "read"),
    **dict.fromkeys(("ModelInfer", "ModelStreamInfer"), "infer"),
    **dict.fromkeys(("RepositoryModelLoad", "RepositoryModelUnload"), "control"),
    **{
        f"{kind}SharedMemory{what}": "control all"
        for kind in ("System", "Cuda")
        for what in ("Status", "Register", "Unregister")
    },
    **dict.fromkeys(("TraceSetting", "LogSettings"), "list"),
}
SERVICE = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"]
NAMES = {
    **{"name": "digits", "dataset": "digits", "version": "1"},
    **{"stream": "door", "picture": "1.jpg"},
}


@dataclass(frozen=True)
class Client:
    """One of the ten, with the server that it asks."""

    name: str
    server: RunningServer
    headers: Mapping[str, str]


@pytest.fixture(scope="module")
def clients(demo_repository, tmp_path_factory) -> Iterator[list[Client]]:
    folder = tmp_path_factory.mktemp("access")
    file = folder / "keys.json"
    tokens = {
        name: key("add", name.replace(" ", "-"), "--keys", file, *flags)
        for name, flags in KEYS.items()
    }
    # Each keeps the streams of its clients in its repository.
    own = [shutil.copytree(demo_repository, folder / name) for name in ("asking", "trusting")]
    asking = start_server(own[0], folder, (*FLAGS, f"--keys={file}"))
    trusting = start_server(own[1], folder, FLAGS)
    try:
        made = []
        for name, headers in CLIENTS.items():
            server = trusting if name in ("local program", "stranger behind a proxy") else asking
            given = {"x-api-key": tokens[name]} if name in tokens else headers
            made.append(Client(name, server, given))
        for client in made:
            if client.name in ("control", "local program"):
                seeded = {**STREAM, "id": "door"}
                url = f"{client.server.url}/v1/streams"
                answer = httpx.post(url, json=seeded, headers=client.headers)
                assert answer.status_code == 201, answer.text
        yield made
    finally:
        for server in (asking, trusting):
            server.process.kill()
            server.process.wait()
    for server in (asking, trusting):
        assert "Traceback" not in server.log.read_text()


def named(path: str) -> str:
    return re.sub(r"\{(\w+)\}", lambda found: NAMES[found[1]], path)


def allowed(client: Client, asked: Asked) -> bool:
    given = {"files": FORM} if asked.body is FORM else {"json": asked.body}
    sent = {} if asked.method in ("GET", "DELETE") else given
    url = client.server.url + named(asked.path)
    with httpx.stream(
        asked.method, url, headers=dict(client.headers), timeout=120, **sent
    ) as answer:
        if answer.status_code not in (401, 403):
            return True
        assert (answer.status_code == 401) == (client.name in ("no key", "wrong key"))
        assert answer.status_code == 403 or answer.headers["www-authenticate"]
        return False


def wrong(found: Mapping[str, bool], needs: str) -> list[str]:
    return [
        f"{name} {'may' if did else 'may not'}"
        for name, did in found.items()
        if did != (name in MAY[needs])
    ]


@pytest.mark.parametrize(
    "asked", [*V1, *DIALECTS, *V2], ids=lambda each: f"{each.method} {each.path}"
)
def test_a_route_lets_in_who_may(clients, asked):
    found = {client.name: allowed(client, asked) for client in clients}
    assert not wrong(found, asked.needs)


@pytest.mark.parametrize("path", SOCKETS)
def test_a_websocket_lets_in_who_may(clients, path):
    found = {}
    for client in clients:
        url = f"ws://127.0.0.1:{client.server.port}{named(path)}"
        try:
            with connect(url, additional_headers=client.headers, open_timeout=120):
                found[client.name] = True
        except InvalidStatus as refused:
            found[client.name] = refused.response.status_code not in (401, 403)
    assert not wrong(found, SOCKETS[path])


@pytest.mark.parametrize("path", SOCKETS)
def test_a_websocket_of_a_page_lets_in_who_may(clients, path):
    # A page sets no headers: its key follows as the first message. The events of a stream say
    # first that there is none of this number.
    found = {}
    for client in clients:
        if client.server is not clients[0].server:
            continue
        url = f"ws://127.0.0.1:{client.server.port}{named(path)}"
        url += "?after=99999" if path.endswith("events") else ""
        with connect(url, origin=client.server.url, open_timeout=120) as line:
            line.send(json.dumps({"api_key": client.headers.get("x-api-key", "")}))
            found[client.name] = json.loads(line.recv(120)).get("status") not in (401, 403)
    assert not wrong(found, SOCKETS[path])


@pytest.mark.parametrize("name", RPCS)
def test_an_rpc_lets_in_who_may(clients, name):
    request = getattr(service_pb2, SERVICE.methods_by_name[name].input_type.name)()
    of_model = RPCS[name] in ("read", "infer", "control", "open")
    for each in ("name", "model_name"):
        if of_model and each in request.DESCRIPTOR.fields_by_name:
            setattr(request, each, "digits")
    found = {each.name: called(each, f"/{SERVICE.full_name}/{name}", request) for each in clients}
    assert not wrong(found, RPCS[name])


@pytest.mark.parametrize("name", ["Check", "Watch"])
def test_probes_of_grpc_let_everybody_in(clients, name):
    nothing = service_pb2.ServerLiveRequest()
    path = f"/grpc.health.v1.Health/{name}"
    assert all(called(each, path, nothing) for each in clients)


def called(client: Client, path: str, request: Message) -> bool:
    with grpc.insecure_channel(f"127.0.0.1:{client.server.grpc_port}") as channel:
        # On the wire a stream of one answer is no other than an answer.
        call = channel.stream_stream(path)
        metadata = [*client.headers.items()]
        answers = call(iter([request.SerializeToString()]), metadata=metadata, timeout=120)
        with suppress(grpc.RpcError):
            answer = next(answers)
        refused = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
        if answers.done() and answers.code() is not grpc.StatusCode.OK:
            if answers.code() in refused:
                assert answers.code() is refused[client.name not in ("no key", "wrong key")]
                return False
            return "--no-keys behind a gateway" not in answers.details()
    if path.endswith("/ModelStreamInfer"):
        # Errors of a stream have no code.
        told = service_pb2.ModelStreamInferResponse.FromString(answer).error_message
        return "may not use model" not in told
    return True


def test_the_metrics_let_in_who_may(clients):
    found = {}
    for client in clients:
        url = f"http://127.0.0.1:{client.server.metrics_port}/metrics"
        found[client.name] = httpx.get(url, headers=client.headers).status_code == 200
    assert not wrong(found, "metrics")


def test_every_route_is_listed(clients):
    documented = httpx.get(f"{clients[-1].server.url}/openapi.json").json()["paths"]
    there = {(verb.upper(), path) for path, verbs in documented.items() for verb in verbs}
    listed = {(each.method, each.path) for each in (*V1, *DIALECTS)}
    assert there == listed
    for route in ROUTES:
        for method in route.methods:
            paths = [each.path for each in V2 if each.method == method]
            assert any(re.fullmatch(route.path, path) for path in paths), (method, route.path)
    assert {each.name for each in SERVICE.methods} == RPCS.keys()
    assert set(METHODS) | {"ModelInfer", "ModelStreamInfer"} == RPCS.keys()
