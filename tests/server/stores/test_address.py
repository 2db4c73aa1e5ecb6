"""Addresses of stores."""

import pytest

from fovea_server.stores.address import parse_address

pytestmark = pytest.mark.real


@pytest.mark.parametrize(
    "text",
    [
        "s3://bucket",
        "s3://bucket/a/prefix",
        "hf://org/name@v1.0/models",
        "https://host:8443/models",
        "gs://b/p",
        "az://container/p",
    ],
)
def test_an_address_is_itself_without_a_last_slash(text):
    assert str(parse_address(text)) == str(parse_address(f"{text}/")) == text
    assert parse_address(text).scheme == text.partition("://")[0]


def test_a_path_is_no_address():
    for path in ("models", "/models", "./a:b", "C:\\models", "s3:/bucket"):
        assert parse_address(path) is None


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("ftp://host/models", "use az://, gs://, hf://, http://, https://, s3://, or a folder"),
        ("https://me:hush@host/m", "https://***@host has credentials"),
        ("hf://me:hush@org/name", "has credentials"),
        ("hf://org/me:hush@name", "has credentials"),
        ("az://c/p?sig=hush", "may have no ?"),
        ("s3://b/hush::file://x", "::"),
        ("s3:///models", "s3://BUCKET/PREFIX"),
        ("s3://bucket/a/../b", "is not whole"),
        ("s3://bucket//a", "is not whole"),
        ("hf://org", "hf://ORG/NAME@REVISION/PREFIX"),
    ],
)
def test_what_is_wrong_is_told_without_secrets(text, told):
    with pytest.raises(ValueError, match="://") as raised:
        parse_address(text)
    assert told in str(raised.value)
    assert "hush" not in str(raised.value)


def test_each_address_has_a_folder_of_its_own():
    texts = ("s3://b/a", "s3://b/A", "s3://b/a-b", "s3://b-a/b", "gs://b/a", f"s3://b/{'x' * 200}")
    names = {parse_address(text).folder_name for text in texts}
    assert len(names) == len(texts)
    assert all(len(name) < 100 and "/" not in name for name in names)
