"""Which parts of the protocol ask for which secret."""

import pytest

from fovea_preprocess.errors import InvalidOption
from fovea_server.auth.restrictions import Restrictions


def test_an_api_asks_for_its_own_secret():
    here = Restrictions.parse(["model-repository,logging:admin=a=b", "inference:key=s"])
    assert here.missing("health", lambda key: None) is None
    assert here.missing("logging", lambda key: None) == "admin"
    assert here.missing("logging", {"admin": "a=b"}.get) is None
    assert here.missing("model-repository", {"admin": "a=B"}.get) == "admin"
    assert here.missing("inference", {"admin": "a=b"}.get) == "key"
    assert here.missing("inference", {"key": "s"}.get) is None


def test_a_header_may_have_any_letters():
    here = Restrictions.parse(["trace:key=secret"])
    assert here.missing("trace", {"key": "Grüße"}.get) == "key"


@pytest.mark.parametrize("given", ["key=Grüße", "key=se\ncret", "my key=secret", "k\u20ac=secret"])
def test_a_secret_that_no_client_can_send_is_refused(given):
    with pytest.raises(InvalidOption, match="'trace'"):
        Restrictions.parse([f"trace:{given}"])


def test_none_restrict_nothing():
    assert Restrictions.parse([]).missing("inference", lambda key: None) is None


@pytest.mark.parametrize("given", ["", "inference", "inference:key", ":k=v", "inference:=v"])
def test_what_is_not_understood_is_told_without_the_secret(given):
    with pytest.raises(InvalidOption, match="KEY=VALUE"):
        Restrictions.parse([given])


def test_a_secret_is_not_told():
    with pytest.raises(InvalidOption) as refused:
        Restrictions.parse(["inference:=hunter2"])
    assert "hunter2" not in str(refused.value)


def test_an_api_that_is_not_there_is_told_with_those_that_are():
    with pytest.raises(InvalidOption, match="'infer'"):
        Restrictions.parse(["health,infer:k=v"])


def test_an_api_is_restricted_once():
    with pytest.raises(InvalidOption, match="'health' can not be specified in multiple"):
        Restrictions.parse(["health:k=v", "health,metadata:l=w"])


def test_a_secret_may_lie_in_a_file(tmp_path):
    file = tmp_path / "se=cret@1"
    file.write_text("hunter2=@\n")
    here = Restrictions.parse([f"logging,trace:admin@{file}", "health:key=a@b"])
    for api in ("logging", "trace"):
        assert here.missing(api, {"admin": "hunter2=@"}.get) is None
        assert here.missing(api, {"admin": str(file)}.get) == "admin"
    assert here.missing("health", {"key": "a@b"}.get) is None


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "No such file"),
        (b"", "contain only the secret"),
        (b" \n", "contain only the secret"),
        (b"a\nb", "cannot be sent as a header"),
        ("Grüße".encode(), "cannot be sent as a header"),
        (b"x" * 100_000, "contain only the secret"),
    ],
)
def test_a_file_without_a_secret_is_told(content, told, tmp_path):
    file = tmp_path / "secret"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(InvalidOption, match=told):
        Restrictions.parse([f"trace:key@{file}"])


def test_a_folder_or_a_device_is_no_secret(tmp_path):
    with pytest.raises(InvalidOption):
        Restrictions.parse([f"trace:key@{tmp_path}"])
    with pytest.raises(InvalidOption):
        Restrictions.parse(["trace:key@/dev/zero"])
