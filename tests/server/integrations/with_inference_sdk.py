"""Asks a server with Roboflow's inference_sdk.

Lines are [url, [[mode, call, arguments, settings]], key].
"""

import json
import sys

from inference_sdk import InferenceConfiguration, InferenceHTTPClient
from inference_sdk.http.errors import HTTPCallErrorError


def asked(url, key, mode, call, arguments, settings):
    client = InferenceHTTPClient(api_url=url, api_key=key)
    client.configure(InferenceConfiguration(**settings))
    if mode == "v0":
        client.select_api_v0()
    try:
        answer = getattr(client, call)(**arguments)
    except HTTPCallErrorError as error:
        return {"status": error.status_code, "message": error.api_message}
    return answer if isinstance(answer, dict | list) else answer.to_dict()


for line in sys.stdin:
    url, calls, key = (*json.loads(line), "any")[:3]
    sys.stdout.write(json.dumps([asked(url, key, *call) for call in calls]) + "\n")
    sys.stdout.flush()
