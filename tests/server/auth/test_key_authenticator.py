"""Keys are found, hold for their time and their models, and their file is followed."""

import json
import logging
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from fovea_preprocess.errors import Forbidden, InvalidOption, RateLimited, Unauthenticated
from fovea_server.auth.bucket import TokenBucket
from fovea_server.auth.key import Rate, Scope, digest_of, new_token, parse_span
from fovea_server.auth.key_authenticator import KeyAuthenticator
from fovea_server.traffic.principal import Principal

NOW = datetime(2026, 11, 26, tzinfo=UTC)


def entry(name: str, *tokens: str, **more: object) -> dict[str, object]:
    secrets = [{"sha256": digest_of(token)} for token in tokens]
    given = {"name": name, "secrets": secrets, "scopes": ["predict"], "created": NOW.isoformat()}
    return given | more


def write(file: Path, *entries: dict[str, object]) -> None:
    new = file.with_suffix(".new")
    new.write_text(json.dumps({"keys": entries}))
    new.replace(file)


@pytest.fixture
def file(tmp_path) -> Path:
    return tmp_path / "keys.json"


@pytest.fixture
def open_door(file):
    doors = []

    def opened(*entries: dict[str, object]) -> KeyAuthenticator:
        write(file, *entries)
        doors.append(KeyAuthenticator(file, now=lambda: NOW))
        return doors[-1]

    yield opened
    for door in doors:
        door.close()


def admit(door: KeyAuthenticator, token: str | None, scope: Scope | None) -> Principal:
    principal = door.principal(token)
    if scope is not None:
        principal.check_scope(scope)
    return principal


def test_a_key_lets_in_and_others_do_not(open_door):
    token, other = new_token(), new_token()
    assert token.startswith("fov_")
    assert len(token) == 47
    assert token != other
    door = open_door(entry("cam", token))
    assert admit(door, token, "predict").name == "cam"
    for wrong in (None, "", other, token[:-1], token + "x", token.upper(), "ü", "fov_" * 9999):
        with pytest.raises(Unauthenticated):
            admit(door, wrong, "predict")
    with pytest.raises(Forbidden, match="'control'"):
        admit(door, token, "control")
    assert admit(door, token, None).name == "cam"


def test_neither_digests_nor_keys_are_in_errors(open_door):
    token = new_token()
    door = open_door(entry("cam", token))
    for wrong, scope in ((token + "x", None), (token, "metrics")):
        with pytest.raises((Unauthenticated, Forbidden)) as refused:
            admit(door, wrong, scope)
        assert token not in str(refused.value)
        assert digest_of(token) not in str(refused.value)


@pytest.mark.parametrize("minutes", [-1, 0, 1])
def test_they_hold_until_their_time(open_door, minutes):
    ends = (NOW + timedelta(minutes=minutes)).isoformat()
    token, old = new_token(), new_token()
    rotated = entry("b", old)
    rotated["secrets"][0]["until"] = ends
    door = open_door(entry("a", token, expires=ends), rotated)
    for each in (token, old):
        if minutes > 0:
            assert admit(door, each, None)
        else:
            with pytest.raises(Unauthenticated, match=r"has expired|was replaced"):
                admit(door, each, None)


def test_patterns_of_models(open_door):
    token, free = new_token(), new_token()
    door = open_door(entry("cam", token, models=["cam-*", "digits"]), entry("any", free))
    for model in ("cam-1", "digits", ""):
        admit(door, token, None).check_model(model)
    admit(door, free, None).check_model("whatever")
    for model in ("cam", "Digits", "digits2"):
        with pytest.raises(Forbidden, match="cam-"):
            admit(door, token, None).check_model(model)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        '{"keys": [{}]}',
        json.dumps({"keys": [entry("a", "x"), entry("a", "y")]}),
        json.dumps({"keys": [entry("a", "x", scopes=["all"])]}),
        json.dumps({"keys": [entry("a", "x", rate="20")]}),
        json.dumps({"keys": [entry("a b", "x")]}),
        json.dumps({"keys": [entry("a", "x")], "more": 1}),
    ],
)
def test_a_file_that_is_wrong_at_the_start_is_an_error(file, content):
    file.write_text(content)
    with pytest.raises(InvalidOption):
        KeyAuthenticator(file)
    file.unlink()
    with pytest.raises(InvalidOption, match="fovea key add"):
        KeyAuthenticator(file)


def admitted(door: KeyAuthenticator, token: str) -> bool:
    try:
        admit(door, token, None)
    except Unauthenticated:
        return False
    return True


def until(condition) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_the_file_is_followed_and_what_is_wrong_changes_nothing(open_door, file, caplog):
    caplog.set_level(logging.INFO)
    first, second = new_token(), new_token()
    door = open_door(entry("a", first))
    write(file, entry("a", first), entry("b", second))
    until(lambda: admitted(door, second))
    file.write_text("{")
    until(lambda: "stay valid" in caplog.text)
    assert admitted(door, first)
    assert admitted(door, second)
    file.unlink()
    until(lambda: "No such file" in caplog.text)
    assert admitted(door, first)
    assert admitted(door, second)
    write(file, entry("b", second))
    until(lambda: not admitted(door, first))
    assert admitted(door, second)


def test_nothing_in_the_file_ends_the_one_who_follows_it(open_door, file, caplog):
    first = new_token()
    door = open_door(entry("a", first))
    for wrong in ({"quota": "1e999/day"}, {"rate": "1e999/s"}):
        write(file, entry("a", first, **wrong))
        until(lambda: "is invalid" in caplog.text)
        caplog.clear()
        assert admitted(door, first)
    write(file)
    until(lambda: not admitted(door, first))


def test_a_change_does_not_fill_the_bucket(open_door, file):
    token = new_token()
    door = open_door(entry("a", token, rate="1/h"))
    admit(door, token, None).charge(1)
    write(file, entry("a", token, rate="1/h", models=["x"]))
    until(lambda: admit(door, token, None).models)
    with pytest.raises(RateLimited):
        admit(door, token, None).charge(1)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_bucket_gives_its_rate_and_its_times_are_right():
    clock = Clock()
    bucket = TokenBucket(Rate.parse("20/s"), clock)
    served, waits = 0, []
    # A minute of sixteen clients, each of which waits as long as it was told.
    due = [0.0] * 16
    waited = [False] * 16
    while clock.now < 60:
        client = min(range(16), key=due.__getitem__)
        clock.now = due[client]
        try:
            bucket.take(1)
        except RateLimited as refused:
            # Who waits that long is served.
            assert not waited[client]
            waited[client] = True
            waits.append(refused.retry_after_s)
            due[client] += refused.retry_after_s
        else:
            served += 1
            waited[client] = False
            due[client] += 1e-4
    assert served == pytest.approx(60 * 20 + 20, rel=0.01)
    assert 0 < min(waits) <= max(waits) < 16 / 20


@pytest.mark.parametrize(("clients", "pause_s"), [(16, 0.001), (3, 0.03), (1, 0.02)])
def test_who_does_not_wait_gets_the_rate_and_no_more(clients, pause_s):
    clock = Clock()
    bucket = TokenBucket(Rate.parse("20/s"), clock)
    served = 0
    for turn in range(int(60 * clients / pause_s)):
        clock.now = turn * pause_s / clients
        with suppress(RateLimited):
            bucket.take(1)
            served += 1
    assert served == pytest.approx(60 * 20 + 20, rel=0.01)


def test_who_waits_as_long_as_told_is_served():
    clock = Clock()
    bucket = TokenBucket(Rate.parse("30/m"), clock)
    bucket.take(30)
    with pytest.raises(RateLimited, match="30/m") as refused:
        bucket.take(1)
    clock.now += refused.value.retry_after_s
    bucket.take(1)


def test_a_request_over_the_burst_is_served_and_paid_off():
    clock = Clock()
    bucket = TokenBucket(Rate.parse("2/s"), clock)
    bucket.take(10)
    with pytest.raises(RateLimited) as refused:
        bucket.take(1)
    assert refused.value.retry_after_s == pytest.approx(4.5)


@pytest.mark.parametrize(
    "text", ["", "20", "20/d", "0/s", "-1/s", "1e/s", "1.2.3/s", "x/s", "20 /s", "1e400/s"]
)
def test_rates_that_are_none(text):
    with pytest.raises(ValueError, match="20/s"):
        Rate.parse(text)


def test_rates_and_times():
    assert Rate.parse("600/m") == (10.0, 600.0, "600/m")
    assert Rate.parse("1e4/h").per_s == pytest.approx(2.7778, abs=1e-4)
    assert Rate.parse("0.5/s") == (0.5, 1.0, "0.5/s")
    assert parse_span("90d") == timedelta(days=90)
    for text in ("", "0d", "1w", "-1d", "1.5h"):
        with pytest.raises(ValueError, match="90d"):
            parse_span(text)
