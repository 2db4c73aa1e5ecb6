"""Asks a server through a client of openapi-python-client, and prints what it answers."""

import base64
import sys
from io import BytesIO
from pathlib import Path

from fovea_generated import Client
from fovea_generated.api.models import get_model
from fovea_generated.api.predict import annotate, predict, predict_form, predict_json
from fovea_generated.models import (
    ImageAnswer,
    ImageSource,
    Mask,
    PredictForm,
    PredictJson,
    PredictMask,
)
from fovea_generated.types import File

url, image, broken, drawn = sys.argv[1:]
data = Path(image).read_bytes()


def file(content: bytes = data) -> File:
    return File(payload=BytesIO(content), file_name="image", mime_type="image/jpeg")


def names(answer: ImageAnswer) -> str:
    if answer.error:
        return answer.error.code
    return " ".join(sorted(each.class_name for each in answer.detections))


def form(mask: Mask) -> str:
    return "counts" if mask.counts else "polygons" if mask.polygons else "png"


with Client(base_url=url) as client:
    answer = predict.sync("digits", client=client, body=file(), conf=0.3)
    print("image:", answer.task, names(answer.images[0]))

    both = PredictForm(file=[file(), file(Path(broken).read_bytes())])
    answer = predict_form.sync("digits", client=client, body=both)
    print("two:", *map(names, answer.images))

    request = PredictJson(images=[ImageSource(data=base64.b64encode(data).decode())])
    answer = predict_json.sync("digits", client=client, body=request)
    print("json:", names(answer.images[0]))

    for mask in PredictMask.RLE, PredictMask.POLYGON, PredictMask.PNG:
        answer = predict.sync("shapes", client=client, body=file(), mask=mask)
        print("mask:", form(answer.images[0].detections[0].mask))

    picture = annotate.sync("digits", client=client, body=file())
    Path(drawn).write_bytes(picture.payload.read())

    model = get_model.sync("digits", client=client)
    print("model:", model.task, len(model.labels))

    refused = predict.sync_detailed("nobody", client=client, body=file())
    print("error:", refused.status_code.value, refused.parsed.error.code)
