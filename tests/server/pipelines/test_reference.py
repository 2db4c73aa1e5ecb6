"""The reference of a pipeline says whether a stage that was replaced answers as before."""

import json
import os
import re
import shutil

import pytest
from onnx import helper
from tests.built import build
from tests.e2e.results import AS_IT_IS, IMAGES, averaged
from tests.engines.tiny import save
from tests.server.pipelines.conftest import DEMO, PIPELINE, write_pipeline
from tests.server.registries import serving

from fovea_engines.build.plan import BuildPlan
from fovea_server.pipelines.reference import PipelineCard

pytestmark = pytest.mark.slow


@pytest.fixture
def command(repository, tmp_path, fovea):
    """Runs `fovea build --pipeline plates` on two scenes."""
    images = tmp_path / "frames"
    images.mkdir()
    for number in (1, 2):
        shutil.copy(DEMO / f"scene-{number}.jpg", images)

    def run(*more, folder=images, name="plates"):
        where = ("--repository", repository, "--images", folder)
        return fovea("build", "--pipeline", name, *where, *more)

    return run


def replaced(repository, tmp_path) -> None:
    """Build version 2 of the stage `embedding`, whose vectors point elsewhere."""
    nodes, weights, _ = averaged(16, 9)
    nodes.append(helper.make_node("Identity", ["mixed"], ["embedding"]))
    source = save(tmp_path / "other.onnx", nodes, IMAGES, [("embedding", ["batch", 16])], weights)
    build(BuildPlan(source, "embedding", repository, "onnxruntime", preprocess=AS_IT_IS))


def test_a_stage_that_answers_otherwise_is_named(repository, tmp_path, fovea, command, caplog):
    code, out, err = command()
    assert code == 0, err
    assert "on 2 images of frames" in out
    code, out, err = command("--check", "--json")
    assert code == 0, err
    first = json.loads(out)
    assert first["same"]
    assert [each["stage"] for each in first["stages"]] == [
        *("digits", "attributes", "digit", "reading", "embedding")
    ]
    for each in first["stages"]:
        # A cosine of 1 in float32 may be 1 - 1e-7, whose angle is not 0.
        assert each["agreement"] > 0.999, each
        assert each["objects"] > 1
        assert each["engine"].endswith("version 1")
    for asked in (("inspect", "plates"), ("versions", "plates")):
        code, out, err = fovea(*asked, "--repository", repository)
        assert code == 0, err
        assert "on 2 images of frames" in out.replace("\n", " ")
        assert "another engine" not in out

    replaced(repository, tmp_path)
    for asked in (("inspect", "plates"), ("versions", "plates")):
        _, out, _ = fovea(*asked, "--repository", repository)
        assert "stage 'embedding' has another engine than the reference" in out
    with serving(repository):
        assert "model plates: stage 'embedding' has another engine" in caplog.text
    code, out, _ = command("--check", "--json")
    assert code == 1
    *others, last = json.loads(out)["stages"]
    assert last["engine"] == "embedding version 2, was version 1"
    assert last["agreement"] < 0.9
    assert "on scene-" in last["differs"]
    assert all(each["agreement"] > 0.999 for each in others)
    code, out, _ = command("--check")
    assert code == 1
    assert "the results differ from the reference" in out
    assert f"`fovea promote embedding 1 --repository {repository}` restores" in out.replace(
        "\n", " "
    )
    _, out, err = fovea("promote", "embedding", "1", "--repository", repository)
    assert "Version 1 of embedding is current" in out, err
    assert command("--check")[0] == 0
    assert fovea("rollback", "embedding", "--repository", repository)[0] == 0

    assert command()[0] == 0
    assert command("--check")[0] == 0


def test_a_detector_that_is_replaced_does_not_count_as_its_readers(
    repository, demo_versions, tmp_path, fovea, command
):
    assert command()[0] == 0
    shutil.copytree(demo_versions / "digits" / "2", repository / "digits" / "2")
    code, out, err = command("--check", "--json")
    assert code == 0, err
    stages = {each["stage"]: each for each in json.loads(out)["stages"]}
    assert stages["digits"]["engine"] == "digits version 2, was version 1"
    assert all(each["agreement"] > 0.98 for each in stages.values())

    replaced(repository, tmp_path)
    _, out, _ = fovea("inspect", "plates", "--repository", repository)
    assert {name for name in stages if f"stage '{name}' has another" in out.replace("\n", " ")} == {
        "digits",
        "embedding",
    }


def test_what_was_found_before_is_compared_object_by_object(repository, command):
    """A card that is changed by hand: an object is missing, a class and a text are others."""
    assert command()[0] == 0
    folder = repository / "plates"
    card = PipelineCard.read(folder)
    first, second = card.images
    said = [dict(each) for each in first.said]
    at = next(i for i, each in enumerate(said) if "digit" in each)
    digit = said[at]["digit"]
    said[at]["digit"] = digit.model_copy(
        update={"arrays": [digit.arrays[0][::-1], digit.arrays[1]], "caption": "nine"}
    )
    text = next(i for i, each in enumerate(said) if "reading" in each)
    reading = said[text]["reading"]
    halved = [array[: len(array) // 2] for array in reading.arrays]
    said[text]["reading"] = reading.model_copy(update={"arrays": halved})
    fewer = second.model_copy(
        update={n: getattr(second, n)[1:] for n in ("boxes", "scores", "class_ids", "said")}
    )
    changed = card.model_copy(update={"images": [first.model_copy(update={"said": said}), fewer]})
    (folder / "reference.json").write_text(changed.model_dump_json())
    code, out, _ = command("--check", "--json")
    assert code == 1
    stages = {each["stage"]: each for each in json.loads(out)["stages"]}
    assert stages["digits"]["differs"] == "0 missed, 1 extra"
    assert stages["digits"]["agreement"] < 1
    count = stages["digit"]["objects"]
    assert stages["digit"]["agreement"] == pytest.approx(1 - 1 / count)
    assert stages["digit"]["differs"].startswith("'nine', now '")
    ids = len(reading.arrays[0])
    lost = 1 - (ids // 2) / ids
    assert stages["reading"]["agreement"] == pytest.approx(1 - lost / stages["reading"]["objects"])
    assert stages["attributes"]["agreement"] > 0.999


def test_names_that_change_are_told_as_that(repository, fovea, command):
    labels = repository / "names.txt"
    labels.write_text("\n".join(f"name {n}" for n in range(10)))
    assert command()[0] == 0
    source = DEMO / "digits-classify.onnx"
    where = ("--repository", repository, "--backend", "onnxruntime")
    assert fovea("build", source, "--name", "classes", "--labels", labels, *where)[0] == 0
    code, out, err = command("--check", "--json")
    assert code == 0, err
    stages = {each["stage"]: each for each in json.loads(out)["stages"]}
    assert stages["digit"]["agreement"] == 1
    assert re.match(r"names changed: '\d', now 'name ", stages["digit"]["differs"])
    assert stages["digit"]["undo"] == "fovea promote classes 1"
    assert all(not each["differs"] for name, each in stages.items() if name != "digit")


def test_objects_are_those_of_the_reference(repository, command):
    """Of a stage that sees none of them any more, nothing agrees."""
    _, out, err = command()
    assert "objects: number in the reference" in out, err
    blind = PIPELINE.replace("if = 0.5", 'classes = ["9"]\nif = 0.99')
    write_pipeline(repository, "plates", blind)
    code, out, _ = command("--check", "--json")
    assert code == 1
    stages = {each["stage"]: each for each in json.loads(out)["stages"]}
    count = stages["digits"]["objects"]
    assert count == PipelineCard.read(repository / "plates").objects
    assert stages["attributes"]["objects"] == stages["embedding"]["objects"] == count
    assert (stages["reading"]["objects"], stages["reading"]["agreement"]) == (0, 0)
    code, out, _ = command("--check")
    assert "check pipeline.toml" in out.replace("\n", " ")
    assert command()[0] == 0
    assert re.search(r"reading +reading version 1 +0 +- ", command()[1])


def test_a_reference_that_is_edited_badly(repository, fovea, command):
    assert command()[0] == 0
    path = repository / "plates" / "reference.json"
    text = path.read_text()
    card = json.loads(text)

    def of_image(**values):
        first, *others = card["images"]
        return json.dumps(card | {"images": [first | values, *others]})

    first = card["images"][0]
    said = {"kind": "Embedding", "arrays": [[1e300] * 16], "caption": ""}
    for wrong in (
        *("", "[]", text[:500], "[" * 100_000),
        *(json.dumps(card | {name: each}) for name in ("images", "stages") for each in ([], {})),
        json.dumps(card | {"format": 2}),
        *(of_image(**{n: first[n][1:]}) for n in ("boxes", "scores", "class_ids", "said")),
        of_image(boxes=[each[:3] for each in first["boxes"]]),
        *(of_image(scores=[n] * len(first["scores"])) for n in (float("nan"), 1e300, "one")),
        of_image(class_ids=[10**30] * len(first["class_ids"])),
        of_image(said=[{"embedding": said}] * len(first["said"])),
    ):
        path.write_text(wrong)
        for asked in (command("--check"), fovea("inspect", "plates", "--repository", repository)):
            assert asked[0] in (1, 2), wrong[:200]
            assert re.fullmatch(
                r"error: \S*/plates/reference.json is damaged, or .+ version of Fovea .+: "
                r"create it again with `fovea build --pipeline plates --images DIR`\n",
                asked[2],
            ), asked[2]
    # Arrays that another network would have, which are numbers.
    odd = [[9.5] * 16, [-3, 7], [], [2e9]]
    path.write_text(
        of_image(said=[{n: said | {"arrays": odd} for n in each} for each in first["said"]])
    )
    assert command("--check")[0] == 1
    path.unlink()
    for make in (path.mkdir, lambda: os.mkfifo(path)):
        make()
        for asked, code in ((command("--check"), 2), (command(), 1)):
            assert asked[0] == code
            assert asked[2] == f"error: {path} is not a regular file: rename or remove it\n"
        with serving(repository) as registry:
            assert not registry.find("plates").reason
        path.rmdir() if path.is_dir() else path.unlink()
    assert command()[0] == 0


def test_wrong_input(repository, tmp_path, fovea, command):
    for asked, says in (
        (("--check",), "has no reference yet"),
        (("--precision", "fp16"), "give --precision or --pipeline, not both"),
    ):
        code, _, err = command(*asked)
        assert (code, says in err) == (2, True), err
    code, _, err = fovea("build", "--pipeline", "plates", "--repository", repository)
    again = f"`fovea build --pipeline plates --repository {repository} --images DIR`"
    assert (code, f"needs a folder of images: {again}" in err) == (2, True), err
    code, _, err = fovea("build")
    assert (code, "MODEL.onnx" in err) == (2, True)
    code, _, err = command(name="digits")
    assert (code, "digits is not a pipeline" in err) == (2, True)
    assert command()[0] == 0
    (tmp_path / "empty").mkdir()
    code, _, err = command("--check", folder=tmp_path / "empty")
    assert (
        code,
        "differs from the image in the reference, which was created from frames" in err,
    ) == (2, 1)
    write_pipeline(repository, "plates", PIPELINE.replace('"7"', '"77"'))
    for more, status in (((), 1), (("--check",), 2)):
        code, _, err = command(*more)
        assert (code, err.count("has no class '77'"), err.count("\n")) == (status, 1, 1), err


def test_a_pipeline_of_a_pipeline(repository, command):
    inner = PIPELINE.partition("[[stages]]\nname")[0]
    write_pipeline(repository, "inner", inner)
    text = '[[stages]]\nmodel = "inner"\n[[stages]]\nmodel = "reading"\n'
    write_pipeline(repository, "plates", text)
    assert command()[0] == 0
    code, out, _ = command("--check", "--json")
    assert code == 0
    names = [each["stage"] for each in json.loads(out)["stages"]]
    assert names == ["digits", "attributes", "reading"]
