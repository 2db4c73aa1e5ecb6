"""An S3 store on this machine, and the packages that read stores."""

import os
import sys
from pathlib import Path

import pytest

REMOTE = Path(sys.prefix) / "remote" / "site-packages"


def remote_packages() -> None:
    """Let the tests import what the extra `remote` brings, and moto; skip where it is absent."""
    if not (REMOTE / "moto").is_dir():
        pytest.skip(f"{REMOTE} is absent: `make test-real` installs it")
    if str(REMOTE) not in sys.path:
        # Last: of what is in both places, that of the tests counts.
        sys.path.append(str(REMOTE))


def environment(**variables: str) -> dict[str, str]:
    """The environment of a server that has the packages, and of no user's credentials."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "HF_", "FOVEA_"))}
    return kept | {"PYTHONPATH": str(REMOTE)} | variables


class Bucket:
    """A bucket of a real S3 server (moto's), on a port of its own."""

    def __init__(self) -> None:
        remote_packages()
        from moto.server import ThreadedMotoServer

        self._make = ThreadedMotoServer
        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        self._server.start()
        self.port = self._server.get_host_and_port()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.variables = {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "AKIDEXAMPLE",
            "AWS_SECRET_ACCESS_KEY": "a-secret-that-is-never-logged",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_MAX_ATTEMPTS": "1",
        }
        import boto3
        from botocore.config import Config

        self.client = boto3.client(
            "s3",
            endpoint_url=self.url,
            region_name="us-east-1",
            aws_access_key_id="AKIDEXAMPLE",
            aws_secret_access_key="a-secret-that-is-never-logged",
            config=Config(request_checksum_calculation="when_required"),
        )
        self.name = f"models-{self.port}"
        self.client.create_bucket(Bucket=self.name)
        self.address = f"s3://{self.name}/prod"

    def put(self, key: str, content: bytes, **options: str) -> None:
        self.client.put_object(Bucket=self.name, Key=f"prod/{key}", Body=content, **options)

    def upload(self, folder: Path, key: str) -> None:
        """Upload a folder, its card.json last."""
        files = sorted(p for p in folder.rglob("*") if p.is_file())
        for path in sorted(files, key=lambda path: path.name == "card.json"):
            self.put(f"{key}/{path.relative_to(folder).as_posix()}", path.read_bytes())

    def remove(self, prefix: str) -> None:
        found = self.client.list_objects_v2(Bucket=self.name, Prefix=f"prod/{prefix}")
        for each in found.get("Contents", ()):
            self.client.delete_object(Bucket=self.name, Key=each["Key"])

    def damage(self, key: str, content: bytes) -> None:
        """Have the store answer with other bytes than it says it has."""
        from moto.s3.models import s3_backends

        [account] = s3_backends.values()
        kept = account["aws"].buckets[self.name].keys[f"prod/{key}"]
        assert kept.etag, "it is computed once"
        kept._value_buffer.seek(0)
        kept._value_buffer.truncate()
        kept._value_buffer.write(content)

    def stop(self) -> None:
        self._server.stop()

    def start_again(self) -> None:
        """On the same port, with all that was in it."""
        self._server = self._make(ip_address="127.0.0.1", port=self.port, verbose=False)
        self._server.start()
