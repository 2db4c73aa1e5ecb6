"""What every request passes, whatever its route: methods, ids, names of hosts, other sites,
and the bound of JSON.
"""

import json
import re
import socket
import zlib
from importlib.metadata import version
from itertools import product

import pytest
from tests.keyed import key

from fovea_server.http.v1.schemas import ErrorAnswer
from fovea_server.json_text import MAX_OF_STRANGERS, MAX_OF_TENSORS, MAX_WEIGHT
from fovea_server.settings import Settings

pytestmark = pytest.mark.slow

PREDICT, INFER = "/v1/models/digits/predict", "/v2/models/digits/infer"
GONE = "/v1/models/nobody/predict"
LOAD, INDEX = "/v2/repository/models/digits/load", "/v2/repository/index"
APIS = {"api": ["deepstack=digits", "roboflow", "label-studio"], "allow_client_shm": True}
EXPLICIT = {"model_control_mode": "explicit", "load_model": ["digits"]}
JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def speaking(asking):
    """A server of all APIs, which loads models by request."""
    return asking(**APIS, **EXPLICIT)


GETS = [
    *("/", "/docs", "/openapi.json", "/static-offline-docs/swagger-ui.css", "/v2"),
    *("/v2/health/live", "/v2/health/ready", "/v2/models/digits", "/v2/models/digits/ready"),
    *("/v2/models/nobody/ready", "/v2/models/nobody/config", "/v2/logging"),
]
STEADY = ("content-type", "content-length", "location", "etag")


def allowed(answer) -> set[str]:
    return set(answer.headers["allow"].split(", "))


@pytest.mark.parametrize("path", GETS)
def test_head_is_get_without_its_body_and_options_tells_the_methods(ask, path):
    get, head, options = (ask(method, path) for method in ("GET", "HEAD", "OPTIONS"))
    assert head.status_code == get.status_code
    assert [head.headers.get(name) for name in STEADY] == [get.headers.get(n) for n in STEADY]
    also = {"POST"} if path == "/v2/logging" else set()
    assert (options.status_code, options.content) == (200, b"")
    assert allowed(options) == {"GET", "HEAD", "OPTIONS"} | also
    if not also:
        refused = ask("POST", path)
        assert (refused.status_code, allowed(refused)) == (405, {"GET", "HEAD", "OPTIONS"})


def test_what_is_for_post_alone_and_what_is_not_there(ask):
    for method in ("GET", "HEAD", "OPTIONS", "DELETE", "PATCH"):
        predict, infer = ask(method, PREDICT), ask(method, INFER)
        assert [predict.status_code, infer.status_code] == [405, 405]
        assert [allowed(predict), allowed(infer)] == [{"POST"}, {"POST"}]
        if method != "HEAD":
            error = ErrorAnswer.model_validate(predict.json(), strict=True).error
            assert error.code == "method_not_allowed"
            assert infer.json() == {"error": "Method Not Allowed"}
    for path, method in product(("/nowhere", "/v1/nowhere", "/v2/nowhere"), ("HEAD", "OPTIONS")):
        assert ask(method, path).status_code == 404


@pytest.mark.parametrize(
    ("method", "path", "status", "words"),
    [
        ("POST", "/v1/models/digits/rollback", 400, "no earlier version"),
        ("POST", "/v1/models/digits/promote", 422, "'version'"),
        ("PUT", "/v1/models/digits/shadow", 422, "'version'"),
        ("POST", "/v1/streams", 400, "JSON object"),
        ("POST", "/setup", 400, "JSON object"),
        ("POST", "/model/add", 400, "JSON object"),
        ("POST", PREDICT, 400, "an image"),
        ("POST", "/digits/1", 400, "an image"),
    ],
)
def test_an_empty_body_is_an_error_only_where_something_is_missing(
    speaking, method, path, status, words
):
    answer = speaking(method, path)
    assert (answer.status_code, words in answer.text) == (status, True), answer.text
    assert ("image" in answer.text) == (words == "an image")


@pytest.mark.parametrize("page", [True, False])
def test_load_balancers_get_200_at_the_root(asking, page):
    ask = asking(page=page)
    found = ask("GET", "/", headers={"user-agent": "GoogleHC/1.0"})
    known = found.json()["name"], found.json()["version"]
    assert (found.status_code, known) == (200, ("fovea", version("fovea-serve")))
    browser = ask("GET", "/", headers={"accept": "text/html,*/*;q=0.8"})
    kind = "text/html" if page else "application/json"
    assert (browser.status_code, browser.headers["content-type"].partition(";")[0]) == (200, kind)


FRESH = re.compile(r"[0-9a-f]{24}")


@pytest.mark.parametrize("path", ["/v2/models/nobody", "/v1/nothing", "/docs", "/openapi.json"])
def test_an_id_is_taken_where_it_is_sane(ask, path):
    def answered(*ids: bytes) -> str:
        answer = ask("GET", path, headers=[(b"x-request-id", each) for each in ids])
        return answer.headers["x-request-id"]

    for sane in (b"a", b"a/b=c;d", b"x" * 128):
        assert answered(sane) == sane.decode()
    for other in (b"", b"x" * 129, b"two words", b"t\tb", b"\xe9", "ü".encode()):
        assert FRESH.fullmatch(answered(other))
    assert answered(b"") != answered(b"")
    assert answered(b"first", b"last") == "last"


OURS = (
    *("localhost", "LOCALHOST:1", "vision.localhost", "localhost.", "127.0.0.1:9", "[::1]:80"),
    *("127.0.0.1.", "[::FFFF:127.0.0.1]:1", "[fe80::1%25eth0]", "192.168.1.20:8000", "0.0.0.0", ""),
)
NEAR = ("fovea", "fovea:8000", "fovea.vision.svc", "fovea.vision.svc.cluster.local", "nas.lan")
THEIRS = (
    *("evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "evil.com:8000"),
    *("a@b.c", "evil.example@localhost", "localhost/.evil.example", "localhost?.evil.example"),
    *("localhost#.evil.example", "localhost:80.evil.example", "localhost..", "[::1].evil.example"),
    *("2130706433.evil.example", "[::1", "evil.example\xa0localhost"),
)
ROUTES = (
    *(("GET", path) for path in ("/v2", "/v1/models", "/", "/docs")),
    *(("OPTIONS", "/v1/models"), ("POST", PREDICT), ("POST", INFER)),
)
NAMED = ("vision.example.com:8443", socket.gethostname())


@pytest.mark.parametrize(
    ("settings", "known", "unknown"),
    [
        ({}, OURS, (*NEAR, *THEIRS, *NAMED[:1])),
        (
            {"http_address": "0.0.0.0", "allowed_host": "Vision.example.com"},
            (*OURS, *NEAR, *NAMED),
            (*THEIRS, "other.example.com", "example.com"),
        ),
        ({"allowed_host": "*"}, (*OURS, *NEAR, *THEIRS), ()),
    ],
    ids=["machine", "network", "every name"],
)
def test_names_that_a_server_goes_by(asking, settings, known, unknown):
    ask = asking(**settings)

    def status(method: str, path: str, host: str) -> int:
        return int(ask(method, path, headers={"Host": host.encode("latin-1")}).status_code)

    for host in known:
        assert status("GET", "/v2", host) == 200, host
    for host, (method, path) in product(unknown, ROUTES):
        assert status(method, path, host) == 403, (host, path)


@pytest.mark.parametrize(
    ("setting", "values"),
    [
        ("allowed_host", ["http://a.example", "a.example:80", "", "a..b", "*.example"]),
        (
            "cors_origin",
            [
                *("app.example.com", "https://a.example/", "https://A.example", "null", ""),
                *("https://a.example:443", "http://"),
            ],
        ),
    ],
)
def test_names_that_are_none(setting, values):
    for value in values:
        with pytest.raises(ValueError, match=setting):
            Settings(**{setting: [value]})


POSTED = (
    *(PREDICT, INFER, "/v2/models/digits/generate", INDEX, LOAD),
    *("/v2/repository/models/digits/unload", "/v2/logging", "/v2/trace/setting"),
    *("/v2/models/digits/trace/setting", "/v2/systemsharedmemory/region/r/register"),
    *("/v2/systemsharedmemory/unregister", "/v2/cudasharedmemory/unregister"),
    *("/v1/vision/detection", "/infer/object_detection", "/model/clear", "/digits/1", "/predict"),
    *("/setup", "/webhook", "/label-studio/digits/setup", "/nowhere"),
)
EVIL = {"Origin": "https://evil.example"}


@pytest.mark.parametrize("path", POSTED)
def test_a_post_of_another_page_is_refused(speaking, path):
    for headers in (EVIL, {"Origin": "null"}, {"Sec-Fetch-Site": "same-site"}):
        answer = speaking("POST", path, headers=headers, content=b"{}")
        assert (answer.status_code, "--cors-origin" in answer.text) == (403, True)
    for method in ("PUT", "PATCH", "DELETE", "BREW"):
        assert speaking(method, path, headers=EVIL).status_code == 403


def test_pages_of_this_server_and_programs_may_post(speaking):
    # A proxy may give its page another name.
    proxied = {"Origin": "https://vision.example.com", "Sec-Fetch-Site": "same-origin"}
    for headers in ({"Origin": "http://localhost"}, proxied, {}, {"Sec-Fetch-Site": "none"}):
        assert speaking("POST", INDEX, headers=headers).status_code == 200
    # A page may send requests that only read, and cannot read their responses.
    assert speaking("GET", "/v2", headers=EVIL).status_code == 200
    # A browser sends a host always; what does not is no page, but `null` equals no name either.
    assert speaking("POST", INDEX, headers={"Host": "", "Origin": "null"}).status_code == 403


APP, OTHER_APP = "https://app.example.com", "http://localhost:5173"
EXPOSED = "Inference-Header-Content-Length, Retry-After, X-Request-Id"
FORM = {"Content-Type": "multipart/form-data; boundary=b"}
SECRET = {"key": "secret"}
MUCH = b"x" * 200_000
# Of each protocol and each path through it: method, path, further headers, body, status.
ANSWERED = {
    "an image": ("POST", PREDICT, SECRET, "image", 200),
    "an image drawn": ("POST", PREDICT, {**SECRET, "Accept": "image/png"}, "image", 200),
    "no image": ("POST", PREDICT, SECRET, b"text", 400),
    "no form": ("POST", PREDICT, SECRET | FORM, b"text", 400),
    "no secret": ("POST", PREDICT, {}, "image", 403),
    "no secret, a form": ("POST", PREDICT, FORM, b"text", 403),
    "a wrong secret": ("POST", f"{PREDICT}/json", {"key": "guess"}, "image", 403),
    "no secret, no model": ("POST", GONE, {}, "image", 403),
    "no model": ("POST", GONE, SECRET, "image", 404),
    "no route": ("GET", "/nowhere", {}, b"", 404),
    "another method": ("GET", PREDICT, {}, b"", 405),
    "too much": ("POST", PREDICT, SECRET, MUCH, 413),
    "too much of a form": ("POST", PREDICT, SECRET | FORM, MUCH, 413),
    "too much once unpacked": (
        *("POST", PREDICT, SECRET | {"Content-Encoding": "deflate"}, zlib.compress(MUCH), 413),
    ),
    "an option": ("POST", PREDICT + "?conf=7", SECRET, "image", 422),
    "the page's client": ("GET", "/page/fovea.js", {}, b"", 200),
    "the document": ("GET", "/openapi.json", {}, b"", 200),
    "v2": ("GET", "/v2", {}, b"", 200),
    "v2, no tensors": ("POST", INFER, SECRET, b"{}", 500),
    "v2, no secret": ("POST", INFER, {}, b"{}", 403),
    "v2, no route": ("GET", "/v2/nowhere", {}, b"", 404),
    "v2, another method": ("GET", INFER, SECRET, b"", 405),
    "v2, too much": ("POST", INFER, SECRET, MUCH, 400),
}
LIMITED = {"http_restricted_api": ["inference:key=secret"], "http_max_input_size": 100_000}


@pytest.fixture(scope="module")
def shared_with(asking):
    """Servers that pages of two origins may use, of every one, and of none."""
    origins = ([APP, OTHER_APP], ["*"], [])
    return [asking(cors_origin=each, **LIMITED) for each in origins]


@pytest.mark.parametrize("asked", ANSWERED.values(), ids=ANSWERED)
def test_pages_may_read_answers_where_the_operator_says(shared_with, scene, asked):
    method, path, headers, body, status = asked
    named, everyone, nobody = shared_with

    def answered(ask, origin: str | None, expected: int = status):
        given = headers | ({} if origin is None else {"Origin": origin})
        answer = ask(method, path, headers=given, content=scene if body == "image" else body)
        assert answer.status_code == expected
        assert FRESH.fullmatch(answer.headers["x-request-id"])
        return answer.headers

    for origin in (APP, OTHER_APP):
        told = answered(named, origin)
        assert told.get_list("access-control-allow-origin") == [origin]
        assert told["access-control-expose-headers"] == EXPOSED
        assert "Origin" in told["vary"]
    told = answered(everyone, "null")
    assert told.get_list("access-control-allow-origin") == ["*"]
    assert told["access-control-expose-headers"] == EXPOSED
    foreign = 403 if method == "POST" else status
    for origin in ("https://evil.example.com", f"{APP}.evil.com", "null"):
        told = answered(named, origin, foreign)
        assert "access-control-allow-origin" not in told
        # A cache must not give this answer to a page that may read it.
        assert "Origin" in told["vary"]
    assert "access-control-allow-origin" not in answered(named, None)
    assert not any("access-control" in name for name in answered(nobody, APP, foreign))


@pytest.mark.parametrize("path", [PREDICT, GONE, INFER, "/v1/models", "/v2", "/v2/nowhere"])
def test_a_preflight_needs_no_secret(shared_with, path):
    wanted = {"Access-Control-Request-Method": "POST"}
    wanted["Access-Control-Request-Headers"] = "key,x-request-timeout-ms"
    for ask, origin in zip(shared_with[:2], (APP, "*"), strict=True):
        answer = ask("OPTIONS", path, headers=wanted | {"Origin": APP})
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == origin
        assert answer.headers["access-control-allow-headers"] == "key,x-request-timeout-ms"
        assert "POST" in answer.headers["access-control-allow-methods"]
    refused = shared_with[0]("OPTIONS", path, headers=wanted | {"Origin": "https://evil.com"})
    assert refused.status_code == 400
    assert "access-control-allow-origin" not in refused.headers
    off = shared_with[2]("OPTIONS", PREDICT, headers=wanted | {"Origin": APP})
    assert off.status_code == 405


def lists(weight: int) -> bytes:
    return b'{"images":[' + b"[]," * (weight // 7) + b"[]]}"


def too_many(ask, path: str, body: bytes, **headers: str) -> tuple[int, bool]:
    """The status, and True if the values are too many."""
    method = "PUT" if path.endswith("/shadow") else "POST"
    answer = ask(method, path, content=body, headers=JSON | headers)
    return answer.status_code, "the JSON is too large" in answer.text


@pytest.mark.parametrize(
    "path",
    [
        *(PREDICT, f"{PREDICT}/json", "/v1/models/digits/annotate"),
        *(f"/v1/models/digits/{change}" for change in ("shadow", "promote", "rollback")),
        *("/v1/streams", "/v2/logging", "/v2/trace/setting", INDEX, LOAD),
        *("/v2/systemsharedmemory/region/r/register", "/v2/repository/models/digits/unload"),
        *("/infer/object_detection", "/model/add", "/model/remove"),
        *("/setup", "/validate", "/predict", "/webhook"),
    ],
)
def test_json_has_a_bound_on_every_route(speaking, path):
    for body in (lists(MAX_WEIGHT), b"[" + b"{}," * (MAX_WEIGHT // 7) + b"1]"):
        assert too_many(speaking, path, body) == (400 if path.startswith("/v2/") else 413, True)


def test_tensors_and_configurations_have_a_bound_too(speaking):
    for path in (INFER, "/v2/models/digits/generate", "/v2/models/digits/generate_stream"):
        assert too_many(speaking, path, lists(MAX_OF_TENSORS))[1]
    # An input for each of thousands is an error that is found at once.
    one = b'{"name":"images","datatype":"FP32","shape":[1,1],"data":[1]}'
    body = b'{"inputs":[' + b",".join([one] * 40_000) + b"]}"
    assert 400 <= too_many(speaking, INFER, body)[0] <= 500
    inner = json.dumps({"parameters": {"config": lists(MAX_WEIGHT).decode()}}).encode()
    assert too_many(speaking, LOAD, inner) == (400, True)


def test_who_has_no_key_yet_may_send_less(asking, tmp_path):
    file = tmp_path / "keys.json"
    given = key("add", "camera", "--keys", file)
    ask, body = asking(**APIS, **EXPLICIT, keys_file=file), lists(MAX_OF_STRANGERS)
    for path in ("/infer/object_detection", "/model/add"):
        assert too_many(ask, path, body) == (413, True)
        assert not too_many(ask, path, body, **{"X-API-Key": given})[1]
