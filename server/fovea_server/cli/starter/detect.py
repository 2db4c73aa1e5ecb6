"""Prints what a model finds on images: python detect.py MODEL IMAGE..."""

import sys

from fovea_client import Client

model, *images = sys.argv[1:] or sys.exit(__doc__)
with Client("http://127.0.0.1:8000") as client:
    for image in images:
        for found in client.predict(model, image).detections:
            print(f"{image}: {found.class_name} {found.score:.2f} {found.box}")
