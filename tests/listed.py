"""The outputs for images that a server lists, and those that it answers."""

import json

import httpx
import numpy as np

from fovea_client import as_json


def check_listed(server, model, answer):
    """Compare an answer of tritonclient with the model's metadata and with its configuration."""
    told = answer.get_response()
    outputs = told["outputs"] if isinstance(told, dict) else told.outputs
    if not isinstance(told, dict):
        outputs = [{n: getattr(o, n) for n in ("name", "datatype", "shape")} for o in outputs]
    url = f"{server.url}/v2/models/{model}"
    listed = httpx.get(url).json()["image_outputs"]
    text = httpx.get(f"{url}/config").json()["parameters"]["image_outputs"]["string_value"]
    assert json.loads(text) == listed
    for have, want in zip(outputs, listed, strict=True):
        assert (have["name"], have["datatype"]) == (want["name"], want["datatype"])
        assert len(have["shape"]) == len(want["shape"])
        assert all(m in (n, -1) for n, m in zip(have["shape"], want["shape"], strict=True))


def check_tensors(answer, results):
    """Compare an answer of tritonclient with what the client has of the same images.

    The rows of images that have less are filled up with zeros.
    """
    for at, result in enumerate(results):
        for name, want in _tensors_of(result).items():
            have = answer.as_numpy(name)
            assert len(have) == len(results)
            want = np.asarray(want)
            inside = tuple(slice(side) for side in want.shape)
            found, beyond = have[at][inside] if inside else have[at], np.array(have[at])
            if have.dtype == object:
                # Of a text alone numpy makes no array.
                texts = [each.decode() for each in np.atleast_1d(found)]
                assert texts == np.atleast_1d(want).tolist()
            else:
                np.testing.assert_allclose(found, want, rtol=1e-4, atol=_ROUNDED.get(name, 1e-5))
            if inside:
                beyond[inside] = 0
                assert not beyond.any()


# JSON has pixels with two digits, a foreground with 8 bits, and depths with 16.
_ROUNDED = dict.fromkeys(("boxes", "keypoints", "rotated"), 0.01)
_ROUNDED |= {"saliency": 0.51 / 255, "picture": 0.51 / 255, "depth": 2e-3}


def _tensors_of(result):
    """The tensors of a result, by name; rows and texts are as many as there are."""
    if result.detections:
        return _of_objects(result)
    if result.classes:
        return {
            "class_ids": [each.class_id for each in result.classes],
            "scores": [each.score for each in result.classes],
            "class_names": [each.class_name for each in result.classes],
        }
    if result.attributes:
        classes = [each for one in result.attributes for each in one.classes]
        likely = [(one.name, (each.class_name for each in one.likely)) for one in result.attributes]
        return {
            "attributes": [f"{name}={','.join(names)}" for name, names in likely],
            "scores": [each.score for each in sorted(classes, key=lambda each: each.class_id)],
        }
    if (found := result.embedding) is not None:
        return {"embedding": found.vector, "norms": found.norm}
    if (found := result.reading) is not None:
        scores = [each.score for each in found.characters]
        return {"text": found.text, "scores": found.score, "character_scores": scores}
    if (found := result.picture) is not None:
        return {"picture": found.pixels / 255, "sizes": (found.height, found.width)}
    sizes = {"sizes": (result.height, result.width)}
    if (found := result.semantic) is not None:
        return {"class_map": found.class_ids} | sizes
    if (found := result.saliency) is not None:
        return {"saliency": found.alpha / 255} | sizes
    if (found := result.depth) is not None:
        return {"depth": found.values} | sizes
    return {each.name: each.data for each in result.tensors}


def _of_objects(result):
    found = {
        "num_detections": len(result.detections),
        "boxes": result.boxes,
        "scores": result.scores,
        "class_ids": result.class_ids,
        "class_names": [each.class_name for each in result.detections],
    }
    if result.detections[0].mask is not None:
        masks = [each["mask"] for each in as_json(result)["detections"]]
        found["masks"] = [json.dumps(each, separators=(",", ":")) for each in masks]
    if result.keypoints is not None:
        found["keypoints"] = result.keypoints
    if result.rotated is not None:
        found["rotated"] = result.rotated
    return found
