"""Keys of WebSockets, and how many may be open and idle."""

import json

import httpx
import pytest
from tests.keyed import key, until
from tests.server.streams.sockets import JPEG, STREAM, answer, ending, opened, raw, refusal, said_by
from tests.serving import start_server
from websockets.sync.client import connect

pytestmark = pytest.mark.slow

# The waits are short, and yet longer than a busy machine takes for what has to be done meanwhile.
HASTY = (
    "import fovea_server.streams.sockets.protocol as p, fovea_server.streams.sockets.frames as f;"
    "import fovea_server.streams.sockets.socket as s;"
    "p.PING_S = 2.5; f.IDLE_S = 6.0; s.MAX_SOCKETS = 8; s.MAX_KEYLESS = 1; s.KEY_WAIT_S = 5.0;"
    "from fovea_server.cli.main import main; main()"
)


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    file = tmp_path_factory.mktemp("keys") / "keys.json"
    made = {"good": [], "other": ["--model", "else*"], "slow": ["--rate", "2/m"], "gone": []}
    return file, {name: key("add", name, "--keys", file, *more) for name, more in made.items()}


@pytest.fixture(scope="module")
def keyed(demo_repository, keys, tmp_path_factory):
    flags, program = ["--keys", str(keys[0])], ("-c", HASTY)
    folder = tmp_path_factory.mktemp("log")
    running = start_server(demo_repository, folder, flags, program=program)
    yield running
    assert running.stop() == 0
    text = running.log.read_text()
    assert "status=101" in text
    assert not [name for name, secret in keys[1].items() if secret in text]


def bearer(secret):
    return {"additional_headers": {"Authorization": f"Bearer {secret}"}}


def test_keys_of_programs(keyed, keys):
    assert refusal(keyed)[0] == 401
    assert refusal(keyed, **bearer("no"))[0] == 401
    assert refusal(keyed, **bearer(keys[1]["other"]))[0] == 403
    head = {"X-API-Key": keys[1]["good"]}
    used = f"{keyed.url}/v1/keys/self"
    with opened(keyed, additional_headers=head) as (line, _):
        for _ in range(3):
            line.send(JPEG)
        assert [answer(line)["frame"] for _ in range(3)] == [0, 1, 2]
    assert httpx.get(used, headers=head).status_code == 200
    metrics = httpx.get(f"http://127.0.0.1:{keyed.metrics_port}/metrics", headers=head)
    assert metrics.status_code == 403


def test_the_key_of_a_page(keyed, keys):
    page = {"origin": keyed.url}
    address = f"ws://127.0.0.1:{keyed.port}{STREAM}"
    with connect(address, **page) as line:
        line.send(json.dumps({"api_key": keys[1]["good"]}))
        assert answer(line)["model"] == "digits"
        line.send(JPEG)
        assert answer(line)["frame"] == 0
    for first, words in (
        (json.dumps({"api_key": "wrong"}), "unknown key"),
        (JPEG, '{"api_key": KEY} as the first message'),
    ):
        with connect(address, **page) as line:
            line.send(first)
            code, reason, said = ending(line)
            assert (code, reason) == (1008, "unauthenticated")
            assert words in said[0]["error"]["message"]
    with connect(address.replace("digits", "nobody"), **page) as line:
        line.send(json.dumps({"api_key": keys[1]["good"]}))
        assert ending(line)[:2] == (1008, "not_found")
    # Who waits for a key takes no place of others, and does not wait for ever.
    with connect(address, **page) as waiting:
        status, error = refusal(keyed, **page)
        assert (status, "wait for their API key" in error["message"]) == (429, True)
        with opened(keyed, **bearer(keys[1]["good"])) as (line, _):
            line.send(JPEG)
            assert answer(line)["frame"] == 0
        code, reason, said = ending(waiting)
        assert (code, reason) == (1008, "unauthenticated")
        assert "no API key arrived" in said[0]["error"]["message"]


def test_rates_are_charged_for_each_frame(keyed, keys):
    with opened(keyed, **bearer(keys[1]["slow"])) as (line, _):
        for _ in range(4):
            line.send(JPEG)
        found = [answer(line) for _ in range(4)]
        assert [each.get("status", 200) for each in found] == [200, 200, 429, 429]
        assert found[2]["error"]["code"] == "rate_limited"
        assert found[2]["retry_after_s"] > 1


def test_a_key_that_is_revoked_ends_the_connection(keyed, keys):
    with opened(keyed, **bearer(keys[1]["gone"])) as (line, _):
        line.send(JPEG)
        assert answer(line)["frame"] == 0
        key("rm", "gone", "--keys", keys[0])
        head = {"X-API-Key": keys[1]["gone"]}
        until(lambda: httpx.get(f"{keyed.url}{STREAM}", headers=head).status_code == 401)
        line.send(JPEG)
        code, reason, said = ending(line)
        assert (code, reason) == (1008, "unauthenticated")
        assert (said[0]["frame"], said[0]["status"]) == (1, 401)


def test_connections_are_bounded_and_end_when_they_are_idle(keyed, keys):
    good = bearer(keys[1]["good"])
    with opened(keyed, **good) as (idle, _), opened(keyed, **good), opened(keyed, **good):
        with opened(keyed, **good):
            status, error = refusal(keyed, **good)
            assert (status, "already has 4 open WebSockets" in error["message"]) == (
                429,
                True,
            )
        # Pings are answered meanwhile.
        code, reason, said = ending(idle)
        assert (code, reason, said) == (1000, "no frame arrived for 6 s", [])
    # One that answers none is cut off.
    said = said_by(raw(keyed, keys[1]["good"]))
    assert b"\x89\x04" in said
    assert b"no frame arrived" not in said
