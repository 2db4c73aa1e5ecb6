"""Tokens of a provider of OpenID Connect: a real one over HTTP, which changes its keys."""

import json
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from tests.server.auth.test_key_authenticator import admit

from fovea_preprocess.errors import (
    Forbidden,
    InvalidOption,
    KeysPending,
    Unauthenticated,
    Unavailable,
)
from fovea_server.auth import provider as module
from fovea_server.auth.key_authenticator import KeyAuthenticator
from fovea_server.auth.provider import Provider

RSA, OTHER = (rsa.generate_private_key(65537, 2048) for _ in range(2))
CURVE = ec.generate_private_key(ec.SECP256R1())


def jwk(key: Any, name: str, algorithm: str) -> dict[str, Any]:
    found = jwt.get_algorithm_by_name(algorithm).to_jwk(key.public_key(), as_dict=True)
    return {**found, "kid": name, "alg": algorithm, "use": "sig"}


class Issuer(ThreadingHTTPServer):
    """Tells its keys, and counts how often it was asked."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.url = f"http://127.0.0.1:{self.server_port}/realms/one"
        self.says: str | None = None
        self.keys = [jwk(RSA, "a", "RS256"), jwk(CURVE, "b", "ES256")]
        self.asked = 0


class Answers(BaseHTTPRequestHandler):
    server: Issuer

    def do_GET(self) -> None:
        server = self.server
        documents = {
            "/realms/one/.well-known/openid-configuration": {
                "issuer": server.says or server.url,
                "jwks_uri": f"{server.url}/certs",
            },
            "/realms/one/certs": {"keys": server.keys},
        }
        server.asked += 1
        found = documents.get(self.path)
        self.send_response(200 if found else 404)
        self.end_headers()
        self.wfile.write(json.dumps(found).encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with Issuer() as server:
        thread = Thread(target=server.serve_forever, args=[0.05])
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def open_door(issuer: Issuer) -> Iterator[Callable[..., KeyAuthenticator]]:
    doors = []

    def opened(claim: str = "scope") -> KeyAuthenticator:
        doors.append(KeyAuthenticator(None, provider=Provider(issuer.url, "fovea", claim)))
        return doors[-1]

    yield opened
    for door in doors:
        door.close()


def token(issuer: Issuer, key: Any = RSA, name: str | None = "a", **claims: Any) -> str:
    given = {"iss": issuer.url, "aud": "fovea", "exp": time.time() + 60, "sub": "anna"}
    given |= {"scope": "openid predict", **claims}
    given = {claim: value for claim, value in given.items() if value is not None}
    algorithm = "ES256" if key is CURVE else "RS256"
    return jwt.encode(given, key, algorithm, headers={"kid": name} if name else {})


def test_scopes_are_those_of_the_claim(open_door, issuer):
    door = open_door()
    principal = admit(door, token(issuer), "predict")
    assert (principal.name, principal.label) == ("jwt:anna", "jwt")
    with pytest.raises(Forbidden, match="'jwt:anna'"):
        admit(door, token(issuer), "control")
    assert admit(door, token(issuer, CURVE, "b", scope="fovea:metrics"), "metrics")
    assert admit(door, token(issuer, scope=["control"], aud=["x", "fovea"]), "control")
    for scope in (None, "", "predicted other:predict PREDICT", []):
        with pytest.raises(Forbidden):
            admit(door, token(issuer, scope=scope), "predict")


@pytest.mark.parametrize("claim", ["realm_access.roles", "https://example.com/roles"])
def test_the_claim_may_be_another(open_door, issuer, claim):
    roles = {"realm_access": {"roles": ["control"]}, "https://example.com/roles": ["control"]}
    assert admit(open_door(claim), token(issuer, **roles), "control")
    with pytest.raises(Forbidden):
        admit(open_door(claim), token(issuer, realm_access="control"), "control")


def test_names_cannot_break_the_log(open_door, issuer):
    principal = admit(open_door(), token(issuer, sub="a b\nü" + "x" * 99), "predict")
    assert principal.name == "jwt:a_b__" + "x" * 59


def test_what_does_not_hold(open_door, issuer):
    door, now = open_door(), time.time()
    public = RSA.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    unsigned = jwt.encode({"iss": issuer.url, "aud": "fovea", "exp": now + 60}, None, "none")
    wrong = [
        token(issuer, exp=now - 31),
        token(issuer, exp=None),
        token(issuer, aud="another"),
        token(issuer, aud=None),
        token(issuer, iss="https://evil.example"),
        token(issuer, iss=None),
        token(issuer, nbf=now + 60),
        token(issuer, OTHER),
        token(issuer, CURVE, "a"),
        token(issuer, name=None),
        token(issuer)[:-4] + "AAAA",
        unsigned,
        "a.b.c",
        "..",
        # A public key is no secret: a signature by it would be anybody's.
        _by_secret(public, {"iss": issuer.url, "aud": "fovea", "exp": now + 60}),
    ]
    for each in wrong:
        with pytest.raises(Unauthenticated):
            admit(door, each, None)
    with pytest.raises(Unauthenticated):
        admit(door, "no token", None)
    # Clocks differ by some seconds.
    assert admit(door, token(issuer, exp=now - 5, iat=now + 5), None)


def _by_secret(secret: bytes, claims: dict[str, Any]) -> str:
    import base64
    import hashlib
    import hmac

    parts = [{"alg": "HS256", "typ": "JWT", "kid": "a"}, claims]
    text = ".".join(
        base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts
    )
    signed = hmac.new(secret, text.encode(), hashlib.sha256).digest()
    return f"{text}.{base64.urlsafe_b64encode(signed).decode().rstrip('=')}"


def test_a_token_that_was_checked_ends_in_its_time(issuer):
    now = [time.time()]
    door = KeyAuthenticator(
        None,
        provider=Provider(issuer.url, "fovea", "scope"),
        now=lambda: datetime.fromtimestamp(now[0], UTC),
    )
    with_little_time = token(issuer, exp=now[0] + 10)
    assert admit(door, with_little_time, None)
    now[0] += 41
    with pytest.raises(Unauthenticated, match="'jwt:anna'"):
        admit(door, with_little_time, None)
    door.close()


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_new_key_of_the_issuer_is_fetched_when_a_token_names_it(open_door, issuer, monkeypatch):
    monkeypatch.setattr(module, "_AGAIN_S", 0.3)
    door, old = open_door(), token(issuer)
    assert admit(door, old, None)
    issuer.keys = [jwk(OTHER, "c", "RS256")]
    asked, new = issuer.asked, token(issuer, OTHER, "c")
    with pytest.raises(Unauthenticated):
        admit(door, new, None)
    time.sleep(0.3)
    with pytest.raises(Unavailable, match="1 s"):
        admit(door, new, None)
    until(lambda: _admitted(door, new))
    # What was checked by a key that is gone is let in no longer.
    assert not _admitted(door, old)
    # Whoever names keys at random has the issuer asked once in a while, not each time.
    for name in range(100):
        _admitted(door, token(issuer, OTHER, f"no-{name}"))
    assert issuer.asked - asked <= 2 * 2


def _admitted(door: KeyAuthenticator, given: str) -> bool:
    try:
        admit(door, given, None)
    except (Unauthenticated, Unavailable):
        return False
    return True


def test_an_issuer_that_comes_later_is_found(open_door, issuer, monkeypatch, caplog):
    monkeypatch.setattr(module, "_AGAIN_S", 0.1)
    issuer.says = "https://another.example"
    door = open_door()
    assert "cannot be fetched" in caplog.text
    assert "https://another.example" in caplog.text
    assert not _admitted(door, token(issuer))
    issuer.says = None
    until(lambda: _admitted(door, token(issuer)))


def test_odd_answers_and_claims_end_nothing(open_door, issuer, monkeypatch, caplog):
    monkeypatch.setattr(module, "_AGAIN_S", 0.1)
    door = open_door()
    for claims in (
        {"exp": "1234567890123"},
        {"exp": 1e12},
        {"exp": 1e30},
        {"scope": 5, "exp": True},
        {"aud": [7]},
        {"sub": {"a": 1}, "exp": 1e15},
    ):
        with pytest.raises(Unauthenticated):
            admit(door, token(issuer, **claims), None)
    for scope in (5, True, {"control": 0}, [["control"]]):
        with pytest.raises(Forbidden):
            admit(door, token(issuer, scope=scope), "control")
    keys, issuer.keys = issuer.keys, [[1], "x"]
    with pytest.raises((Unauthenticated, KeysPending)):
        admit(door, token(issuer, OTHER, "c"), None)
    until(lambda: "cannot be fetched" in caplog.text or _admitted(door, token(issuer, OTHER, "c")))
    issuer.keys = [*keys, jwk(OTHER, "c", "RS256")]
    until(lambda: _admitted(door, token(issuer, OTHER, "c")))


def test_keys_come_over_lines_that_nobody_changes():
    with pytest.raises(InvalidOption):
        Provider("http://issuer.example", "fovea", "scope")
