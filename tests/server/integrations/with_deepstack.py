"""Asks a server with the client of Home Assistant's integration.

Lines are [port, image, [model], key].
"""

import json
import sys
from pathlib import Path

from deepstack.core import DeepstackException, DeepstackObject


def asked(port, image, model, key):
    client = DeepstackObject("127.0.0.1", port, api_key=key, custom_model=model)
    try:
        return client.detect(Path(image).read_bytes())
    except DeepstackException as error:
        return str(error)


for line in sys.stdin:
    port, image, models, key = (*json.loads(line), "")[:4]
    sys.stdout.write(json.dumps([asked(port, image, model, key) for model in models]) + "\n")
    sys.stdout.flush()
