"""The kinds of stores, and what each says of its files."""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fovea_server.stores.listing import Digest
from fovea_server.stores.web import Listed


@dataclass(frozen=True, slots=True)
class Scheme:
    """A kind of store.

    Attributes:
        describe: the tag and the digest of a listed file.
        by_fsspec: it is read by a package of fsspec, and else by `WebServer`.
        streams: a file is read in one request, not by ranges.
        encrypted: tells whether a file's digest may be of its encrypted bytes; None: it never is.
    """

    describe: Callable[[Listed], tuple[str, Digest | None]]
    by_fsspec: bool = True
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
    return str(listed.get("etag") or listed.get("last-modified") or ""), None


def _size(listed: Listed) -> int:
    size = listed.get("size")
    return size if isinstance(size, int) else 0


_HTTP = Scheme(_http, by_fsspec=False, streams=True)

SCHEMES: Mapping[str, Scheme] = {
    "s3": Scheme(_s3, encrypted=_s3_encrypted),
    "gs": Scheme(_gs),
    "az": Scheme(_az),
    "hf": Scheme(_hf, streams=True),
    "https": _HTTP,
    "http": _HTTP,
}
