"""Wrong commands, and where commands find their models."""

import json

import pytest

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("build", "absent.onnx"), "'absent.onnx' does not exist"),
        (("build", "tiny.onnx", "--size", "big"), "HEIGHTxWIDTH"),
        (
            ("build", "tiny.onnx", "--size", "96"),
            "`fovea edit tiny.onnx --size 96x96 --out tiny-",
        ),
        (("build", "tiny.onnx", "--name", "../x"), "cannot name a model"),
        (("build", "tiny.onnx", "--labels", "broken.onnx"), "labels"),
        (("build", "tiny.onnx", "--images", "."), "no image"),
        (("build", "tiny.onnx", "--max-batch", 0), "--max-batch"),
        (("build", "tiny.onnx", "--precision", "int4"), "'int4' is not one of 'auto', 'fp32'"),
        (("build", "tiny.onnx", "--precison", "fp16"), "did you mean --precision?"),
        (("build", "tiny.onnx", "--imgsz", 64), "input size is `fovea build --size HxW`; see"),
        (("build", "tiny.onnx", "--qqqq"), "No such option: --qqqq; see"),
        (("build", "tiny.onnx", "--precision", "int8"), "INT8 needs --calibration DIR"),
        (("predict", "tiny.onn", "a.jpg", "--imgsz", 64), "`fovea build --size HxW`; see"),
        (("build",), "name the file to build, MODEL.onnx"),
        (("inspect", "absent.onnx"), "no file or folder absent.onnx"),
        (("inspect", "tiny.onnx", "--repository", "r"), "--repository has no effect"),
        (("inspect", "."), "has no model"),
        (("bild",), "No such command 'bild'. Did you mean 'build'"),
        ((), "give one of these commands"),
    ],
)
def test_a_wrong_command_is_a_sentence(fovea, tiny_model, tmp_path, arguments, says):
    (tmp_path / "tiny.onnx").write_bytes(tiny_model.read_bytes())
    (tmp_path / "broken.onnx").write_bytes(tiny_model.read_bytes()[:500])
    code, out, err = fovea(*arguments)
    assert code == 2
    assert out == ""
    assert says in err
    assert err.splitlines()[-1].startswith("error: ")
    assert "Value error" not in err
    assert not list((tmp_path / "repository").glob("*"))


def test_a_name_that_is_nearly_right_is_put_right(fovea, built_repository):
    code, _, err = fovea("inspect", "tinny", "--repository", built_repository)
    assert code == 2
    assert "no file or folder tinny; did you mean tiny?" in err


def test_a_failure_is_a_sentence(fovea, tiny_model, tmp_path):
    (tmp_path / "broken.onnx").write_bytes(tiny_model.read_bytes()[:500])
    code, out, err = fovea("build", "broken.onnx")
    assert (code, out) == (1, "")
    assert "not a whole ONNX model" in err.splitlines()[-1]
    assert err.splitlines()[-1].startswith("error: ")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("build", "--calibration", "images"), "--calibration has no effect without --precision"),
        (
            ("build", "--calibrator", "minmax"),
            "--calibrator has no effect without --precision int8",
        ),
        (("build", "--keep-float", "none", "--precision", "fp16"), "--keep-float has no effect"),
        (("build", "--max-drop", 0.01), "--max-drop has no effect without --data"),
        (("build", "--workspace", 64), "without --backend tensorrt or tensorrt-rtx"),
        (("build", "--builder-level", 3), "--builder-level has no effect"),
        (("build", "--plugin", "tiny.onnx"), "--plugin has no effect"),
        (
            ("build", "--compute-capability", 80, "--backend", "tensorrt"),
            "without --backend tensorrt-rtx",
        ),
        (("build", "--profile", "1,1,1", "--max-batch", 1), "--profile has no effect"),
        (("diff", "tiny.onnx", "--all", "--json"), "give --all or --json, not both"),
        (("diff", "tiny.onnx", "--values", "--json"), "give --values or --json, not both"),
        (("diff", "tiny.onnx", "--repository", "r"), "--repository has no effect"),
        (("inspect", "--head", "yolov8", "--layers"), "give --head or --layers, not both"),
        (("predict", "images/0.png", "--url", "u", "--repository", "r"), "not both"),
        (("eval", "--data", "images", "--url", "u", "--repository", "r"), "not both"),
    ],
)
def test_an_option_that_would_be_ignored_is_refused(
    fovea, tiny_model, images, tmp_path, arguments, says
):
    (tmp_path / "tiny.onnx").write_bytes(tiny_model.read_bytes())
    (tmp_path / "images").symlink_to(images)
    command, *options = arguments
    code, out, err = fovea(command, "tiny.onnx", *options)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert says in err


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (("build", "m", "--labels", "absent"), "--labels"),
        (("build", "m", "--images", "absent"), "--images"),
        (("build", "m", "--data", "absent"), "--data"),
        (("build", "m", "--precision", "int8", "--calibration", "absent"), "--calibration"),
        (("build", "m", "--data", "names.json", "--images", "images"), "names.json"),
        (("sensitivity", "m", "--calibration", "absent"), "--calibration"),
        (("sensitivity", "m", "--calibration", "empty"), "empty has no image"),
        (("diff", "m", "m", "--images", "absent"), "--images"),
        (("diff", "m", "absent.onnx"), "absent.onnx"),
        (("predict", "m", "absent.jpg"), "absent.jpg: there is no such file"),
        (("predict", "m", "empty"), "empty has no image"),
        (("predict", "m", "http://a.b/c.jpg"), "http://a.b/c.jpg is an address"),
        (("predict", "m", "rtsp://cam/1"), "fovea watch MODEL rtsp://cam/1"),
        (("predict", "m", "/dev/video0"), "/dev/video0 is a camera"),
        (("predict", "m", "0"), "0 is a camera"),
        (("eval", "here/m", "--data", "absent"), "--data"),
        (("eval", "here/m", "--data", "names.json", "--images", "absent"), "--images"),
        (("eval", "here/m", "--data", "names.json", "--images", "images"), "there is no image"),
    ],
)
def test_paths_are_looked_at_before_models(fovea, images, tmp_path, arguments, option):
    """The model is no model: whoever opens it first says so."""
    for model in (tmp_path / "m", tmp_path / "here" / "m" / "1" / "model.onnx"):
        model.parent.mkdir(parents=True, exist_ok=True)
        model.write_bytes(b"no model")
    (tmp_path / "empty").mkdir()
    (tmp_path / "images").symlink_to(images)
    image = {"id": 1, "file_name": "absent.jpg", "width": 1, "height": 1}
    document = {"images": [image], "annotations": [], "categories": []}
    (tmp_path / "names.json").write_text(json.dumps(document))
    code, out, err = fovea(*arguments)
    assert (code, out) == (2, "")
    assert option in err
    assert err.startswith("error: ")


def test_the_repository_is_that_of_the_option_else_of_the_variable(
    fovea, tiny_model, images, tmp_path, monkeypatch
):
    image = images / "0.png"
    code, out, _ = fovea("build", tiny_model)
    assert code == 0
    assert out.splitlines()[-1] == "Serve it: fovea serve"
    monkeypatch.setenv("FOVEA_MODEL_REPOSITORY", str(tmp_path / "of all"))
    assert fovea("predict", "tiny", image)[0] == 2
    code, out, _ = fovea("build", tiny_model, "--name", "there")
    assert out.splitlines()[-1] == "Serve it: fovea serve"
    assert (tmp_path / "of all" / "there" / "1" / "card.json").is_file()
    code, out, _ = fovea("build", tiny_model, "--name", "here", "--repository", "my models")
    assert out.splitlines()[-1] == "Serve it: fovea serve 'my models'"
    here = ("--repository", "my models")
    for name, option in (
        ("there", ()),
        ("here", here),
        ("my models/here", ()),
        ("repository/tiny/1", ()),
    ):
        code, out, err = fovea("predict", name, image, *option, "--json")
        assert code == 0, err
        [entry] = json.loads(fovea("inspect", name, *option, "--json")[1])
        assert (entry["name"], entry["version"]) == (json.loads(out)["model"], 1)
        assert fovea("diff", tiny_model, name, *option)[0] == 0
    assert [e["name"] for e in json.loads(fovea("inspect", "--json")[1])] == ["there"]
    assert [e["name"] for e in json.loads(fovea("inspect", *here, "--json")[1])] == ["here"]
    assert fovea("predict", "here", image)[0] == 2


def test_what_follows_from_the_model_anyway_makes_no_second_version(fovea, tiny_model, tmp_path):
    (tmp_path / "names.txt").write_text("cat\ndog\nbus\n")
    assert fovea("build", tiny_model)[0] == 0
    for same in (
        ("--size", 64),
        ("--labels", tmp_path / "names.txt"),
        ("--head", "yolov8"),
        ("--max-batch", 1),
        ("--no-nms-tail", "--no-image-front"),
    ):
        code, _, err = fovea("build", tiny_model, *same)
        assert code == 0
        assert "nothing to build" in err, same


def test_help_of_build_is_in_groups_that_fit_80_columns(fovea, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    lines = fovea("build", "--help")[1].splitlines()
    assert max(map(len, lines)) <= 80
    titles = [line for line in lines if line.endswith(":") and not line.startswith(" ")]
    assert titles == [
        "Arguments:", "Model and repository:", "Precision:", "Check:", "Graph:", "TensorRT:",
        "Options:",
    ]  # fmt: skip
    of_tensorrt = lines[lines.index("TensorRT:") : lines.index("Options:")]
    shown = [line.split()[0] for line in of_tensorrt if line.startswith("  --")]
    assert shown == [
        "--profile",
        "--workspace",
        "--builder-level",
        "--compute-capability",
        "--plugin",
    ]


@pytest.mark.parametrize("columns", ["60", "80"])
def test_the_list_of_commands_is_whole(fovea, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    shown = fovea("--help")[1]
    assert max(map(len, shown.splitlines())) <= 80
    commands = shown[shown.index("First steps:") :]
    assert "..." not in commands
    assert "Measure how accurate a model is on labelled images." in " ".join(commands.split())


def test_a_repository_in_a_store_is_for_serve_alone(fovea, tiny_model, monkeypatch, tmp_path):
    store = "s3://key:hush@bucket/models"
    for arguments in (
        ("build", tiny_model),
        ("predict", "tiny", "image.png"),
        ("inspect",),
        ("bench", "tiny", "--images", tmp_path),
        ("eval", "tiny", "--data", tmp_path),
    ):
        code, _, err = fovea(*arguments, "--repository", store)
        monkeypatch.setenv("FOVEA_MODEL_REPOSITORY", store)
        assert (code, err) == (2, fovea(*arguments)[2])
        monkeypatch.delenv("FOVEA_MODEL_REPOSITORY")
        assert "`aws s3 sync s3://bucket/models repository`" in err
        assert "hush" not in err
        assert not (tmp_path / "s3:").exists()
    monkeypatch.setenv("FOVEA_MODEL_REPOSITORY", store)
    err = fovea("predict", "tiny", "image.png", "--url", "http://127.0.0.1:1")[2]
    assert "takes a folder" not in err
