"""A detector process of Frigate: [plugin, endpoint, model, file of frames, repeats] -> rows.

A line asks for all frames of the .npy file, over and over.
"""

import json
import sys
from pathlib import Path

import numpy as np
from frigate_plugin import zmq_detector

for line in sys.stdin:
    source, endpoint, model, frames, repeats = json.loads(line)
    with zmq_detector(Path(source), endpoint, model) as detector:
        rows = [detector.detect_raw(frame) for _ in range(repeats) for frame in np.load(frames)]
    sys.stdout.write(json.dumps([each.tolist() for each in rows]) + "\n")
    sys.stdout.flush()
