"""`fovea key`: what it prints, what the file keeps, and how it refuses."""

import json
import stat
import subprocess
import threading
import time
from contextlib import suppress
from datetime import UTC, datetime

import pytest
from tests.keyed import until

from fovea_server.auth.key import change_keys, digest_of, read_keys
from fovea_server.auth.key_authenticator import KeyAuthenticator

pytestmark = pytest.mark.slow


def test_a_key_is_shown_once_and_the_file_has_its_digest(fovea, tmp_path):
    code, token, told = fovea("key", "add", "cam-1", "--model", "cam-*", "--rate=20/s")
    file = tmp_path / "keys.json"
    assert code == 0
    assert "shown only once" in told
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
        (("add", "a"), "'a'"),
        (("add", "a b"), "NAME"),
        (("add", "b", "--scope", "all"), "--scope is 'all'; it must be 'predict', "),
        (("add", "b", "--rate", "20"), "20/s"),
        (("add", "b", "--expires", "soon"), "90d"),
        (("add", "b", "--model="), "--model"),
        (("set", "a"), "--"),
        (("rotate", "b"), "'b'"),
        (("rm", "b"), "'b'"),
        (("ls", "--keys", "gone.json"), "fovea key add NAME --keys gone.json"),
        (("add", "b", "--keys", "other.json"), "other.json"),
    ],
)
def test_what_is_wrong_is_said_and_changes_nothing(fovea, tmp_path, arguments, reason):
    fovea("key", "add", "a")
    (tmp_path / "other.json").write_text('{"users": []}')
    files = (tmp_path / "keys.json", tmp_path / "other.json")
    before = [file.read_bytes() for file in files]
    code, _, told = fovea("key", *arguments)
    assert code == 2
    assert reason in told
    assert [file.read_bytes() for file in files] == before


def test_what_a_key_allows_is_changed_and_the_key_stays(fovea, tmp_path):
    _, token, _ = fovea("key", "add", "a", "--rate=1/s", "--expires=1d", "--model=x,y", "--model=z")
    code, told, _ = fovea("key", "set", "a", "--rate=3/m", "--quota=9/day", "--expires=", "--json")
    assert code == 0
    shown = json.loads(told)
    assert (shown["rate"], shown["quota"], shown["expires"]) == ("3/m", "9/day", None)
    assert shown["models"] == ["x", "y", "z"]
    fovea("key", "set", "a", "--rate=", "--model=", "--scope=predict", "--scope=metrics")
    [key] = read_keys(tmp_path / "keys.json").keys
    assert (key.rate, key.models, key.scopes) == (None, (), ("predict", "metrics"))
    assert key.secrets[0].sha256 == digest_of(token.strip())


def test_a_key_whose_time_is_over_is_rotated_with_a_new_time_alone(fovea, tmp_path):
    fovea("key", "add", "a", "--expires=1s")
    time.sleep(1.1)
    code, _, told = fovea("key", "rotate", "a")
    assert (code, "--expires" in told) == (2, True)
    assert fovea("key", "rotate", "a", "--expires=1d", "--grace=0s")[0] == 0
    [key] = read_keys(tmp_path / "keys.json").keys
    assert len(key.secrets) == 2
    assert key.secrets[1].until <= datetime.now(UTC)


def test_a_link_stays_one_and_the_file_keeps_its_mode(fovea, tmp_path):
    (tmp_path / "real").mkdir()
    real, link = tmp_path / "real" / "keys.json", tmp_path / "keys.json"
    fovea("key", "add", "a", "--keys", real)
    real.chmod(0o640)
    link.symlink_to(real)
    assert fovea("key", "rm", "a")[0] == 0
    assert link.is_symlink()
    assert read_keys(real).keys == ()
    assert stat.S_IMODE(real.stat().st_mode) == 0o640


@pytest.fixture
def full_disk(tmp_path):
    """A file system without space, and what makes space there."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {done.stderr.strip()}")

    def fill() -> None:
        with (folder / "fill").open("wb", buffering=0) as stream, suppress(OSError):
            while stream.write(bytes(4096)):
                pass

    yield folder, fill
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_key_is_taken_back_on_a_full_disk(fovea, full_disk):
    folder, fill = full_disk
    keys = folder / "keys.json"
    for name in ("gate", "yard"):
        assert fovea("key", "add", name, "--keys", keys, "--scope", "predict,control")[0] == 0
    door = KeyAuthenticator(keys)
    (folder / ".keys.json.lock").unlink()
    fill()
    before = keys.read_bytes()
    code, _, err = fovea("key", "add", "late", "--keys", keys)
    assert code == 1
    assert "the disk is full" in err
    assert keys.read_bytes() == before
    assert fovea("key", "set", "yard", "--scope", "predict", "--keys", keys)[0] == 0
    code, out, err = fovea("key", "rm", "gate", "--keys", keys)
    assert (code, out) == (0, f"Removed the key gate from {keys}.\n"), err
    [left] = read_keys(keys).keys
    assert (left.name, left.scopes) == ("yard", ("predict",))
    until(lambda: list(door._principals) == ["yard"])
    door.close()
    assert {path.name for path in folder.iterdir()} == {".keys.json.lock", "fill", "keys.json"}


def test_keys_that_are_made_at_once_are_all_there(fovea, tmp_path):
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
