"""Asks a server through a client of openapi-generator, and prints what it answers."""

import base64
import sys
from pathlib import Path

from openapi_client import (
    ApiClient,
    ApiException,
    Configuration,
    ImageAnswer,
    ImageSource,
    Mask,
    ModelsApi,
    PredictApi,
    PredictJson,
)

url, image, broken, drawn = sys.argv[1:]
data = Path(image).read_bytes()


def names(answer: ImageAnswer) -> str:
    if answer.error:
        return answer.error.code
    return " ".join(sorted(each.class_name for each in answer.detections))


def form(mask: Mask) -> str:
    return "counts" if mask.counts else "polygons" if mask.polygons else "png"


with ApiClient(Configuration(host=url)) as client:
    predict = PredictApi(client)
    answer = predict.predict("digits", data, conf=0.3)
    print("image:", answer.task, names(answer.images[0]))

    answer = predict.predict_form("digits", [data, Path(broken).read_bytes()])
    print("two:", *map(names, answer.images))

    source = ImageSource(data=base64.b64encode(data).decode())
    answer = predict.predict_json("digits", PredictJson(images=[source]))
    print("json:", names(answer.images[0]))

    for mask in ("rle", "polygon", "png"):
        answer = predict.predict("shapes", data, mask=mask)
        print("mask:", form(answer.images[0].detections[0].mask))

    Path(drawn).write_bytes(predict.annotate("digits", data))

    model = ModelsApi(client).get_model("digits")
    print("model:", model.task, len(model.labels))

    try:
        predict.predict("nobody", data)
    except ApiException as error:
        print("error:", error.status, error.data.error.code)
