"""Keys of a store, which become paths."""

import pytest

from fovea_server.stores.listing import RemoteFile, models_of

pytestmark = pytest.mark.real


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
        (["m/../../etc/passwd"], "is no path"),
        (["m/1/./model.onnx"], "is no path"),
        (["m//model.onnx"], "is no path"),
        (["m/1\\..\\x"], "is no path"),
        (["m/1/a\0b"], "is no path"),
        (["m/1/a\nb"], "is no path"),
        (["m/1/" + "x" * 300], "over 255 bytes"),
        (["m/1/model.onnx", "m/1/Model.onnx"], "differ in nothing but case"),
        (["m/A/x", "m/a/y"], "differ in nothing but case"),
        (["m/1", "m/1/model.onnx"], "a file and a folder at once"),
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
