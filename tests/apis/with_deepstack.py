"""Asks a server with the client of Home Assistant's integration: lines [port, image, [model]]."""

import json
import sys
from pathlib import Path

from deepstack.core import DeepstackException, DeepstackObject


def asked(port, image, model):
    client = DeepstackObject("127.0.0.1", port, custom_model=model)
    try:
        return client.detect(Path(image).read_bytes())
    except DeepstackException as error:
        return str(error)


for line in sys.stdin:
    port, image, models = json.loads(line)
    sys.stdout.write(json.dumps([asked(port, image, model) for model in models]) + "\n")
    sys.stdout.flush()
