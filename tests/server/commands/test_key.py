"""`fovea key`: what it prints, what the file keeps, and how it refuses."""

import json
import stat
import threading

import pytest

from fovea_server.keys.key import digest_of
from fovea_server.keys.key_file import read_keys


def test_a_key_is_shown_once_and_the_file_has_its_digest(fovea, tmp_path):
    code, token, told = fovea("key", "add", "cam-1", "--model", "cam-*", "--rate=20/s")
    file = tmp_path / "keys.json"
    assert code == 0
    assert "shown this once" in told
    assert token.strip() not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    [key] = read_keys(file).keys
    assert (key.name, key.scopes, key.models, key.rate) == (
        "cam-1",
        ("predict",),
        ("cam-*",),
        "20/s",
    )
    assert key.secrets[0].sha256 == digest_of(token.strip())
    _, listed, _ = fovea("key", "ls")
    assert "cam-1" in listed
    assert "never" in listed
    assert key.secrets[0].sha256 not in listed


def test_json_is_for_programs(fovea, tmp_path):
    _, made, _ = fovea(
        "key", "add", "a", "--json", "--expires", "90d", "--scope", "control,metrics"
    )
    token = json.loads(made)["key"]
    [shown] = json.loads(fovea("key", "ls", "--json")[1])
    assert shown["scopes"] == ["control", "metrics"]
    assert shown["expires"] > shown["created"]
    assert "secrets" not in shown
    newest = json.loads(fovea("key", "rotate", "a", "--json")[1])["key"]
    first, second = read_keys(tmp_path / "keys.json").keys[0].secrets
    assert (first.sha256, first.until) == (digest_of(newest), None)
    assert second.sha256 == digest_of(token)
    assert second.until is not None


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("add", "a"), "has a key 'a': rotate, set or remove that"),
        (("add", "a b"), "NAME: "),
        (("add", "b", "--scope", "all"), "--scope: "),
        (("add", "b", "--rate", "20"), "rate: a rate is written as 20/s"),
        (("add", "b", "--expires", "soon"), "a time is written as 90d"),
        (("rotate", "b"), "has no key 'b'; it has a"),
        (("rm", "b"), "has no key 'b'"),
        (("ls", "--keys", "gone.json"), "fovea key add NAME --keys gone.json"),
    ],
)
def test_what_is_wrong_is_said_and_changes_nothing(fovea, tmp_path, arguments, reason):
    fovea("key", "add", "a")
    before = (tmp_path / "keys.json").read_bytes()
    code, _, told = fovea("key", *arguments)
    assert code == 2
    assert reason in told
    assert (tmp_path / "keys.json").read_bytes() == before


def test_another_file_is_left_alone(fovea, tmp_path):
    (tmp_path / "keys.json").write_text('{"users": []}')
    code, _, told = fovea("key", "add", "a")
    assert code == 2
    assert "is no file of keys" in told
    assert (tmp_path / "keys.json").read_text() == '{"users": []}'


def test_keys_that_are_made_at_once_are_all_there(fovea, tmp_path):
    from fovea_server.keys.key_file import change_keys

    fovea("key", "add", "a")
    [first] = read_keys(tmp_path / "keys.json").keys

    def add(number: int) -> None:
        made = first.model_copy(update={"name": f"k{number}"})
        change_keys(tmp_path / "keys.json", lambda keys: (*keys, made))

    threads = [threading.Thread(target=add, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(read_keys(tmp_path / "keys.json").keys) == 21
