"""The kinds of stores, and what each says of its files."""

from __future__ import annotations

import importlib
import re
from base64 import b64decode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from fovea_server.remote.listing import Digest

Listed = Mapping[str, object]
"""A file as fsspec lists it; the keys differ from store to store."""


@dataclass(frozen=True, slots=True)
class Scheme:
    """A kind of store.

    Attributes:
        describe: the tag and the digest of a listed file.
        options: of fsspec's file system.
        find_options: of its `find`.
        names_are_urls: files are named by whole addresses, and listed without size or tag.
        streams: a file is read in one request, not by ranges.
        encrypted: True if a file's digest may be of its encrypted bytes.
    """

    describe: Callable[[Listed], tuple[str, Digest | None]]
    options: Callable[[], Mapping[str, object]] = dict
    find_options: Mapping[str, object] = field(default_factory=dict)
    names_are_urls: bool = False
    streams: bool = False
    encrypted: Callable[[object, str], bool] | None = None


def _s3(listed: Listed) -> tuple[str, Digest | None]:
    tag = str(listed.get("ETag", "")).strip('"')
    # The ETag of an upload in parts is the digest of their digests, and has a hyphen.
    return tag, Digest("md5", tag) if re.fullmatch("[0-9a-f]{32}", tag) else None


def _s3_encrypted(files: object, name: str) -> bool:
    # With keys of the customer or of AWS KMS the ETag looks like an MD5, and is none.
    bucket, _, key = name.partition("/")
    call: Callable[..., Listed] = getattr(files, "call_s3")  # noqa: B009
    head = call("head_object", Bucket=bucket, Key=key)
    kms = str(head.get("ServerSideEncryption", "")).startswith("aws:kms")
    return kms or "SSECustomerAlgorithm" in head


def _gs(listed: Listed) -> tuple[str, Digest | None]:
    tag = str(listed.get("generation") or listed.get("etag") or "")
    md5 = listed.get("md5Hash")  # composite objects have none
    return tag, Digest("md5", b64decode(str(md5)).hex()) if md5 else None


def _az(listed: Listed) -> tuple[str, Digest | None]:
    md5 = getattr(listed.get("content_settings"), "content_md5", None)
    digest = Digest("md5", bytes(md5).hex()) if isinstance(md5, bytes | bytearray) else None
    return str(listed.get("etag") or "").strip('"'), digest


def _hf(listed: Listed) -> tuple[str, Digest | None]:
    blob = str(listed.get("blob_id") or "")
    large = listed.get("lfs")
    if large is not None:
        sha256 = str(getattr(large, "sha256", ""))
        return sha256 or blob, Digest("sha256", sha256) if sha256 else None
    # Git's digest of a file.
    return blob, Digest("sha1", blob, b"blob %d\0" % _size(listed)) if blob else None


def _http(listed: Listed) -> tuple[str, Digest | None]:
    return str(listed.get("ETag") or listed.get("Last-Modified") or ""), None


def _size(listed: Listed) -> int:
    size = listed.get("size")
    return size if isinstance(size, int) else 0


def _http_options() -> Mapping[str, object]:
    aiohttp = importlib.import_module("aiohttp")
    # No limit on the whole: an engine may take long. Proxies and ~/.netrc count.
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=30)
    return {"client_kwargs": {"timeout": timeout, "trust_env": True}}


# Indexes may link in circles; and a folder that cannot be listed now is not one that is gone.
_HTTP_FIND = {"maxdepth": 6, "on_error": "raise"}
_HTTP = Scheme(_http, _http_options, _HTTP_FIND, names_are_urls=True, streams=True)

SCHEMES: Mapping[str, Scheme] = {
    "s3": Scheme(_s3, encrypted=_s3_encrypted),
    "gs": Scheme(_gs),
    "az": Scheme(_az),
    "hf": Scheme(_hf, streams=True),
    "https": _HTTP,
    "http": _HTTP,
}
