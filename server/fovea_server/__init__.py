"""Serves engines over HTTP and gRPC: clients send images or tensors, and receive predictions."""

import sys
from importlib.util import find_spec
from pathlib import Path

# The wheel installs fovea_client in a directory that a .pth file adds to the path. Python reads
# .pth files only in site-packages. In a directory of `pip install --target` or PYTHONPATH, this
# code adds the directory to the path.
if find_spec("fovea_client") is None:
    sys.path.append(str(Path(__file__).with_name("bundled")))
