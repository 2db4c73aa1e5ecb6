"""Serves engines over HTTP and gRPC: image in, boxes out."""

import sys
from importlib.util import find_spec
from pathlib import Path

# The wheel has fovea_client in a folder that a .pth file adds to the path. Python reads such files
# in site-packages only, not where `pip install --target` or PYTHONPATH put the server.
if find_spec("fovea_client") is None:
    sys.path.append(str(Path(__file__).with_name("bundled")))
