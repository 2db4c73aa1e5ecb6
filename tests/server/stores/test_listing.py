"""Addresses of stores, and keys in them, which become paths."""

import pytest

from fovea_server.stores.address import parse_address
from fovea_server.stores.listing import RemoteFile, models_of


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
        ("ftp://host/models", "az://, gs://, hf://, http://, https://, s3://"),
        ("https://me:hush@host/m", "https://***@host"),
        ("hf://me:hush@org/name", "credentials"),
        ("hf://org/me:hush@name", "credentials"),
        ("az://c/p?sig=hush", "?"),
        ("s3://b/hush::file://x", "::"),
        ("s3:///models", "s3://BUCKET/PREFIX"),
        ("s3://bucket/a/../b", "s3://bucket/a/../b"),
        ("s3://bucket//a", "s3://bucket//a"),
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


def listed(*keys):
    return models_of(RemoteFile(key, f"bucket/{key}", 1, f"tag of {key}", None) for key in keys)


def test_files_are_sorted_by_model_and_others_left_out():
    keys = ("b/1/model.onnx", "a/config.pbtxt", "README.md", ".git/x", "../etc/passwd", "/etc/x")
    models = listed(*keys)
    assert [model.name for model in models] == ["a", "b"]
    assert not any(model.problem for model in models)


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        *(([key], "path") for key in ("m/../../etc/passwd", "m/1/./model.onnx", "m//model.onnx")),
        *(([key], "path") for key in ("m/1\\..\\x", "m/1/a\0b", "m/1/a\nb")),
        (["m/1/" + "x" * 300], "255"),
        (["m/1/model.onnx", "m/1/Model.onnx"], "case"),
        (["m/A/x", "m/a/y"], "case"),
        (["m/1", "m/1/model.onnx"], "folder"),
    ],
)
def test_keys_that_cannot_be_paths_are_refused_with_their_model_alone(keys, told):
    one, other = listed(*keys, "other/1/model.onnx")
    assert told in one.problem
    assert not other.problem


def test_models_that_differ_in_case_are_both_refused():
    models = listed("Foo/1/x", "foo/1/x", "bar/1/x")
    assert [bool(model.problem) for model in models] == [True, False, True]


def test_other_content_has_another_id():
    [one] = listed("m/1/x")
    [same] = listed("m/1/x")
    [other] = listed("m/1/y")
    [more] = listed("m/1/x", "m/1/y")
    assert one.content_id == same.content_id
    assert len({one.content_id, other.content_id, more.content_id}) == 3
