"""`fovea init --from-triton`: repositories in the shapes that people publish."""

import json
import re

import pytest
from tests.server.start import steps
from tests.server.start.written import NETWORK, PYTHON, ensemble, python

pytestmark = pytest.mark.slow


@pytest.fixture
def read(fovea, triton):
    """Start a project from a repository: its report."""

    def run(**models):
        code, out, err = fovea("init", "new", "--from-triton", triton(**models), "--json")
        assert (code, err) == (0, ""), err
        return json.loads(out)

    return run


def the_network(report):
    [network] = report["networks"]
    return network


def does(network):
    return {each["name"]: each["does"] for each in network["steps"]}


def test_an_ensemble_of_three(read):
    network = the_network(
        read(
            pre=python(steps.LETTERBOX),
            digits=NETWORK,
            post=python(steps.SUPPRESS),
            detector={"config.pbtxt": ensemble("pre", "digits", "post")},
        )
    )
    assert (network["name"], network["ensemble"], network["family"]) == (
        *("digits", "detector", "yolov8"),
    )
    assert does(network) == {
        "pre": "decode, resize, letterbox, channels, layout, scale",
        "post": "classes, nms",
    }
    assert network["preprocess"] == {
        **{"fit": "letterbox", "pad": 114, "resample": "linear", "channels": "RGB"},
        **{"scale": 1 / 255, "mean": [0, 0, 0], "std": [1, 1, 1]},
    }
    assert network["options"] == {"conf": 0.4, "iou": 0.6, "agnostic": True}
    assert network["contradictions"] == network["left"] == []
    assert network["build"] == "fovea build models/digits.onnx --preprocess models/digits.json"
    border = next(each for each in network["steps"][0]["findings"] if "copyMake" in each["code"])
    lines = steps.LETTERBOX.splitlines()
    line = next(number for number, text in enumerate(lines, 1) if "copyMakeBorder" in text)
    assert border["where"] == f"pre/1/model.py:{line}"


def test_a_normalisation_that_is_not_applied(read):
    network = the_network(
        read(
            pre=python(steps.PILLOW),
            digits=NETWORK,
            all={"config.pbtxt": ensemble("pre", "digits")},
        )
    )
    assert network["preprocess"] == {
        **{"fit": "stretch", "resample": "antialias", "channels": "RGB"},
        **{"scale": 1 / 255, "mean": [0, 0, 0], "std": [1, 1, 1]},
    }
    assert network["contradictions"] == [
        "steps have fit stretch; models of the family yolov8 usually fit letterbox"
    ]


def test_a_crop_with_the_constants_of_imagenet(read):
    network = the_network(
        read(
            pre=python(steps.CROP),
            digits=NETWORK,
            all={"config.pbtxt": ensemble("pre", "digits")},
        )
    )
    assert network["preprocess"] == {
        **{"fit": "center-crop", "crop_ratio": round(256 / 224, 6), "resample": "antialias"},
        **{"channels": "RGB", "scale": 1 / 255},
        **{"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]},
    }
    sizes, values = network["contradictions"]
    assert sizes == "steps make images of 224x224 (height x width), and it takes 320x320"
    assert "mean 0.485 0.456 0.406" in values


def test_dali_with_its_source_beside_it(read):
    network = the_network(
        read(
            pre={"1/dali.py": steps.DALI, "1/model.dali": b"\0", "config.pbtxt": 'backend: "dali"'},
            digits=NETWORK,
            all={"config.pbtxt": ensemble("pre", "digits")},
        )
    )
    assert does(network) == {"pre": "decode, resize, normalise"}
    said = network["preprocess"]
    assert (said["fit"], said["crop_ratio"]) == ("center-crop", round(256 / 224, 6))
    assert (said["mean"], said["std"]) == ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])


def test_dali_that_is_serialised(read):
    network = the_network(
        read(
            pre={"1/model.dali": b"\0\1\2", "config.pbtxt": 'backend: "dali"'},
            digits=NETWORK,
            all={"config.pbtxt": ensemble("pre", "digits")},
        )
    )
    assert network["preprocess"] == {}
    assert network["left"][0].startswith("pre: there is no source of its pipeline (dali.py)")


def test_a_step_that_asks_for_the_network_with_a_module_beside_it(read):
    network = the_network(
        read(
            bls=python(steps.ASKING, **{"1/helpers.py": steps.HELPERS}),
            digits=NETWORK,
        )
    )
    assert network["ensemble"] == "bls"
    assert network["preprocess"] == {
        **{"fit": "letterbox", "anchor": "top-left", "pad": 114, "resample": "linear"},
        **{"channels": "BGR", "scale": 1, "mean": [0, 0, 0], "std": [1, 1, 1]},
    }
    assert network["options"] == {"conf": 0.35, "iou": 0.45}
    assert network["labels"] == 10
    assert "--labels models/digits.txt" in network["build"]


def test_signed_levels_thresholds_of_the_configuration_and_labels_in_json(read, tmp_path):
    parameters = "".join(
        f'parameters {{ key: "{key}" value: {{ string_value: "{value}" }} }}\n'
        for key, value in (("THRESHOLD", "0.3"), ("IOU", "0.55"))
    )
    labels = json.dumps({f"digit {number}": number for number in reversed(range(10))})
    network = the_network(
        read(
            pre=python(steps.SIGNED),
            digits=NETWORK,
            post=python(steps.CONFIGURED, PYTHON + parameters, **{"labels.json": labels}),
            all={"config.pbtxt": ensemble("pre", "digits", "post")},
        )
    )
    assert network["preprocess"] == {
        **{"fit": "stretch", "resample": "area", "channels": "RGB"},
        **{"scale": 1 / 255, "mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5]},
    }
    assert network["options"] == {"conf": 0.3, "iou": 0.55}
    written = (tmp_path / "new" / "models" / "digits.txt").read_text().splitlines()
    assert written == [f"digit {number}" for number in range(10)]


def test_a_network_that_the_step_runs_itself(read):
    network = the_network(read(all_in_one=python(steps.OWN_SESSION, **{"1/digits.onnx": None})))
    assert (network["name"], network["ensemble"]) == ("digits", "all_in_one")
    assert network["preprocess"] == {
        **{"fit": "stretch", "resample": "linear", "channels": "RGB"},
        **{"scale": 1 / 255, "mean": [0, 0, 0], "std": [1, 1, 1]},
    }


def test_a_plan_is_no_onnx(read, tmp_path):
    network = the_network(
        read(
            pre=python(steps.LETTERBOX),
            digits={"1/model.plan": b"ftrt", "config.pbtxt": 'platform: "tensorrt_plan"'},
            all={"config.pbtxt": ensemble("pre", "digits")},
        )
    )
    assert "cannot be turned back into ONNX" in network["left"][0]
    assert network["build"] == "fovea build models/digits.onnx --preprocess models/digits.json"
    assert not (tmp_path / "new/models/digits.onnx").exists()
    assert (tmp_path / "new/models/digits.json").exists()


def test_two_networks_one_inside_the_ensemble_of_the_other(read):
    report = read(
        pre=python(steps.LETTERBOX),
        first=NETWORK,
        between=python(steps.SIGNED),
        second=NETWORK,
        inner={"config.pbtxt": ensemble("pre", "first")},
        outer={"config.pbtxt": ensemble("inner", "between", "second")},
    )
    first, second = sorted(report["networks"], key=lambda one: one["name"])
    assert first["ensemble"] == second["ensemble"] == "outer"
    assert list(does(first)) == ["pre", "between"]
    assert (first["preprocess"]["fit"], second["preprocess"]["fit"]) == ("letterbox", "stretch")


def test_what_is_not_understood_is_left_to_the_user(read):
    cached = "response_cache { enable: true }\ninstance_group [{ count: 2 }]\n"
    network = the_network(
        read(
            pre=python(steps.SMOOTH),
            digits=NETWORK | {"config.pbtxt": cached},
            post=python(steps.NOTHING),
            all={"config.pbtxt": ensemble("pre", "digits", "post")},
        )
    )
    assert does(network) == {"pre": "processor", "post": "unknown"}
    unknown, processor, blur, config = network["left"]
    assert unknown == "post (python) is not understood"
    assert processor.startswith("pre/1/model.py:9 is not understood: AutoImageProcessor")
    assert blur.startswith("pre/1/model.py:12 is not understood: cv2.GaussianBlur")
    assert config.startswith("not kept of config.pbtxt: instance_group")
    assert "repository/digits/config.pbtxt" in network["files"]


def test_the_table_says_the_same(fovea, triton, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    repository = triton(
        pre=python(steps.LETTERBOX),
        digits=NETWORK,
        post=python(steps.SUPPRESS),
        all={"config.pbtxt": ensemble("pre", "digits", "post")},
    )
    code, out, err = fovea("init", "new", "--from-triton", repository)
    assert (code, err) == (0, "")
    assert "digits of the ensemble all: images float32 [-1, 3, 320, 320]" in out
    assert "requests then have ?conf=0.4&iou=0.6&agnostic=true" in out
    commands = re.findall(r"^    (\S.*)$", out, re.MULTILINE)
    assert commands == [
        "cd new",
        "fovea build models/digits.onnx --preprocess models/digits.json",
        "fovea serve",
    ]
