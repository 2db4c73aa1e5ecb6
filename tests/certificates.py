"""Certificates for tests of TLS."""

import shutil
import subprocess
from pathlib import Path

import pytest


def make_pair(folder: Path, name: str) -> tuple[Path, Path]:
    """A key and a certificate that it signs itself, both PEM."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificates, and is not installed")
    key, certificate = folder / f"{name}.key", folder / f"{name}.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"
    extra = ["-subj", f"/CN={name}", "-addext", "subjectAltName=DNS:localhost"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*command.split(), *extra, *files], check=True, capture_output=True)
    return key, certificate
