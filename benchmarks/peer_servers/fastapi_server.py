"""FastAPI: a plain endpoint, which runs in one of its threads.

python fastapi_server.py PORT PROCESSES
"""

import os
import sys

import uvicorn
from detector import Detector
from fastapi import FastAPI, UploadFile

app = FastAPI()
# Processes are started by import, which reads no arguments.
detector = Detector(os.environ["PEER_MODEL"], int(os.environ["PEER_THREADS"]))


@app.post("/predict")
def predict(image: UploadFile) -> dict[str, object]:
    """Find boxes."""
    return {"boxes": detector(image.file.read())}


if __name__ == "__main__":
    uvicorn.run(
        "fastapi_server:app", port=int(sys.argv[1]), workers=int(sys.argv[2]), access_log=False
    )
