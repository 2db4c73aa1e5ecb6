"""A model store: an object store that fsspec reads, or a web server."""

from __future__ import annotations

import importlib
import re
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass
from threading import Thread
from typing import Protocol

from fovea_preprocess.errors import FoveaError, InvalidModel, InvalidOption, NotFound, Unavailable
from fovea_server.stores.address import Address
from fovea_server.stores.listing import Digest, RemoteFile, RemoteModel, models_of
from fovea_server.stores.web import Listed, Readable, WebServer

# Size in bytes of a request to a store that is read in ranges.
CHUNK = 4 << 20
_PATIENCE_S = 30.0


@dataclass(frozen=True, slots=True)
class Scheme:
    """Properties of a kind of store.

    Attributes:
        describe: function that returns the tag and the digest of a file in the listing.
        by_fsspec: True if a package of fsspec reads the store, False if `WebServer` does.
        streams: True if a file is read with one request, False if it is read in ranges.
        encrypted: function that returns True if the digest may be computed from the file's
            encrypted bytes; None if digests are always computed from the plain bytes.
    """

    describe: Callable[[Listed], tuple[str, Digest | None]]
    by_fsspec: bool = True
    streams: bool = False
    encrypted: Callable[[object, str], bool] | None = None


def _s3(listed: Listed) -> tuple[str, Digest | None]:
    tag = str(listed.get("ETag", "")).strip('"')
    # The ETag of a multipart upload is computed from the digests of its parts, and contains a
    # hyphen.
    return tag, Digest("md5", tag) if re.fullmatch("[0-9a-f]{32}", tag) else None


def _s3_encrypted(files: object, name: str) -> bool:
    # If the file is encrypted with a key of the customer or of AWS KMS, its ETag looks like an MD5
    # digest but is none.
    bucket, _, key = name.partition("/")
    call: Callable[..., Listed] = getattr(files, "call_s3")  # noqa: B009
    head = call("head_object", Bucket=bucket, Key=key)
    kms = str(head.get("ServerSideEncryption", "")).startswith("aws:kms")
    return kms or "SSECustomerAlgorithm" in head


def _gs(listed: Listed) -> tuple[str, Digest | None]:
    tag = str(listed.get("generation") or listed.get("etag") or "")
    md5 = listed.get("md5Hash")  # composite objects have no MD5
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
    # Git computes the digest from this prefix and the content.
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


class FileSystem(Protocol):
    """The operations of fsspec that Fovea uses.

    They are declared here, because fsspec has no type annotations.
    """

    def invalidate_cache(self) -> None:
        """Discard cached listings."""

    def find(self, path: str, *, detail: bool) -> Mapping[str, Listed]:
        """Return all files below a path."""

    def open(
        self, path: str, mode: str, *, block_size: int, cache_type: str
    ) -> AbstractContextManager[Readable]:
        """Open a file."""


class Store:
    """The models below a URL.

    Raises:
        InvalidOption: the packages for this kind of store are not installed.
        Unavailable: the client of the store cannot be created, for example because credentials are
            missing.
    """

    def __init__(self, address: Address) -> None:
        self.address = address
        self._scheme = SCHEMES[address.scheme]
        self._listing: Future[list[RemoteModel]] | None = None
        if self._scheme.by_fsspec:
            self._root = address.url.partition("://")[2]
            self._files: FileSystem | WebServer = self._fsspec()
        else:
            self._root = address.url
            self._files = WebServer()

    def _fsspec(self) -> FileSystem:
        try:
            fsspec = importlib.import_module("fsspec")
            make: Callable[..., FileSystem] = fsspec.filesystem
            return make(self.address.scheme, use_listings_cache=False, skip_instance_cache=True)
        except ImportError as error:
            raise InvalidOption(
                f"{self.address} needs packages that are not installed ({error}): pip install "
                "'fovea-serve[remote]', or '.[remote]' in a clone of the repository"
            ) from error
        except Exception as error:
            raise self._unavailable(error) from error

    def models(self) -> list[RemoteModel]:
        """List the models.

        Raises:
            NotFound: the URL has no models. This is also the result if the URL is a login page.
            Unavailable: the store does not respond within 30 s, or rejects the request.
        """
        if self._listing is None or self._listing.done():
            self._listing = Future()
            # Use a daemon thread and a timeout, because the waits and retries of the packages may
            # take many minutes.
            Thread(target=self._ask, args=(self._listing,), name="list", daemon=True).start()
        try:
            return self._listing.result(_PATIENCE_S)
        except TimeoutError as error:
            raise Unavailable(
                f"{self.address} cannot be read: no response for {_PATIENCE_S:g} s"
            ) from error

    def _ask(self, answer: Future[list[RemoteModel]]) -> None:
        try:
            answer.set_result(self._list())
        except FoveaError as error:
            answer.set_exception(error)

    def _list(self) -> list[RemoteModel]:
        try:
            models = models_of(self._list_files())
        except FileNotFoundError as error:
            raise NotFound(f"{self.address} does not exist or is empty") from error
        except FoveaError:
            raise
        except Exception as error:
            raise self._unavailable(error) from error
        if not any(re.search(r"^[^/]+/[1-9]\d*/", f.key) for m in models for f in m.files):
            raise NotFound(f"there is no model at {self.address} (NAME/VERSION/model.*)")
        return models

    def _list_files(self) -> Iterator[RemoteFile]:
        for name, listed in self._find_files().items():
            key = name.removeprefix(f"{self._root}/")
            problem = str(listed.get("problem", ""))
            # A store without directories may contain an empty object with the name of a directory.
            folder = key == name or key.endswith("/") or listed.get("type") == "directory"
            if folder and not problem:
                continue
            size, (tag, digest) = listed.get("size"), self._scheme.describe(listed)
            if problem:
                problem = f"{key} cannot be read: {problem}"
            elif not isinstance(size, int) or not tag:
                problem = (
                    f"the server does not say how large {key} is, or has neither ETag nor "
                    "Last-Modified, without which a change could not be seen"
                )
            yield RemoteFile(key, name, size if isinstance(size, int) else 0, tag, digest, problem)

    def _find_files(self) -> Mapping[str, Listed]:
        if isinstance(self._files, WebServer):
            return self._files.find(self._root)
        self._files.invalidate_cache()
        return self._files.find(self._root, detail=True)

    def read(self, file: RemoteFile) -> Iterator[bytes]:
        """Yield the content of a file in chunks.

        Raises:
            InvalidModel: the content does not match the checksum of the store.
            NotFound: the file was removed, or access to it is forbidden.
            Unavailable: the store does not respond.
        """
        block = 0 if self._scheme.streams else CHUNK
        try:
            opening = self._files.open(file.name, "rb", block_size=block, cache_type="none")
            with opening as opened:
                while chunk := opened.read(CHUNK):
                    yield chunk
        except (FileNotFoundError, PermissionError) as error:
            raise NotFound(str(self._unavailable(error, file.key))) from error
        except Exception as error:
            if "Checksum" in type(error).__name__:  # an error class of botocore
                raise InvalidModel(f"{file.key} was damaged in the store or in transit") from error
            raise self._unavailable(error, file.key) from error

    def digest_counts(self, file: RemoteFile) -> bool:
        """Return whether the digest of a file is the digest of the bytes that are read."""
        encrypted = self._scheme.encrypted
        try:
            return encrypted is None or not encrypted(self._files, file.name)
        except Exception as error:
            raise self._unavailable(error) from error

    def _unavailable(self, error: Exception, key: str = "") -> Unavailable:
        text = (str(error).strip() or repr(error)).splitlines()[0]
        # Remove queries, which may contain signatures and tokens, and users, which may include
        # passwords.
        text = re.sub(r"\?[^\s'\"]+", "?...", re.sub(r"//[^/\s@]+@", "//***@", text))
        where = f"{self.address}/{key}" if key else self.address
        return Unavailable(f"{where} cannot be read: {type(error).__name__}: {text}")
