"""Lets requests in by their keys, and follows the file of keys while the server runs."""

from __future__ import annotations

import hmac
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from fovea_preprocess.errors import Forbidden, InvalidOption, Unauthenticated
from fovea_server.keys.bucket import TokenBucket
from fovea_server.keys.key import Key, Rate, Scope, Secret, digest_of
from fovea_server.keys.key_file import Keys, read_keys

log = logging.getLogger(__name__)

# What is revoked is out within this time, and that of reading the file.
_LOOK_S = 0.5

_HINT = "send it as Authorization: Bearer KEY or X-API-Key: KEY; `fovea key add` makes one"


@dataclass(frozen=True, slots=True)
class Holder:
    """A key that was accepted; `bucket` is None where it has no rate."""

    key: Key
    bucket: TokenBucket | None

    def check_model(self, model: str) -> None:
        """Raise Forbidden if the key is not for a model of this name; "" is none."""
        if model and not self.key.takes(model):
            raise Forbidden(
                f"key '{self.key.name}' is not for this model: it is for "
                f"{', '.join(self.key.models)}"
            )

    def charge(self, images: int) -> None:
        """Count images; RateLimited if the rate of the key has no room for them."""
        if self.bucket is not None:
            self.bucket.take(images)


class Door:
    """Knows the keys of a file.

    The file is read again when it changes. What cannot be read, or is gone, changes nothing: the
    keys from before hold, and the log has the reason.

    Raises:
        InvalidOption: the file cannot be read at the start.
    """

    def __init__(self, file: Path, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._file, self._now = file, now
        self._by_digest: dict[str, tuple[Holder, Secret]] = {}
        self._stamp: tuple[int, ...] = ()
        self._stopped = threading.Event()
        try:
            self._stamp = self._stamp_now()
            self._take(read_keys(file))
        except (OSError, ValueError) as error:
            raise InvalidOption(
                f"the keys cannot be read from {file} ({error}): "
                f"`fovea key add NAME --keys {file}` makes a file with one"
            ) from None
        threading.Thread(target=self._follow, name="keys", daemon=True).start()

    def admit(self, token: str | None, scope: Scope | None) -> Holder:
        """Return the holder of a key that allows a request.

        Args:
            token: of the request; None without one.
            scope: that it needs; None where any key will do.

        Raises:
            Unauthenticated: there is no key, or it does not hold.
            Forbidden: it lacks the scope.
        """
        if not token:
            raise Unauthenticated(f"this server asks for a key: {_HINT}")
        digest = digest_of(token)
        found = self._by_digest.get(digest)
        # The time of a look-up tells of the digest alone, which nobody can choose by its bytes.
        if found is None or not hmac.compare_digest(found[1].sha256, digest):
            raise Unauthenticated(f"this key is not known here: {_HINT}")
        (holder, secret), now = found, self._now()
        if holder.key.is_expired(now) or (secret.until is not None and now >= secret.until):
            raise Unauthenticated(f"the time of key '{holder.key.name}' is over: ask for a new one")
        if scope is not None and scope not in holder.key.scopes:
            raise Forbidden(
                f"key '{holder.key.name}' lacks the scope '{scope}': it has "
                f"{', '.join(holder.key.scopes) or 'none'}"
            )
        return holder

    def close(self) -> None:
        """Stop looking at the file."""
        self._stopped.set()

    def _stamp_now(self) -> tuple[int, ...]:
        # A mounted secret or ConfigMap is a link whose target changes.
        status = self._file.stat()
        return status.st_mtime_ns, status.st_size, status.st_ino, status.st_dev

    def _take(self, keys: Keys) -> None:
        before = {holder.key.name: holder for holder, _ in self._by_digest.values()}
        after: dict[str, tuple[Holder, Secret]] = {}
        for key in keys.keys:
            rate = None if key.rate is None else Rate.parse(key.rate)
            known = before.get(key.name)
            bucket = None if rate is None else TokenBucket(rate)
            # A change of something else does not fill the bucket.
            if known and known.bucket and known.bucket.rate == rate:
                bucket = known.bucket
            holder = Holder(key, bucket)
            after |= {secret.sha256: (holder, secret) for secret in key.secrets}
        # Replaced as a whole: the event loop sees the keys from before, or those from now on.
        self._by_digest = after

    def _follow(self) -> None:
        reported = ""
        while not self._stopped.wait(_LOOK_S):
            try:
                stamp = self._stamp_now()
                if stamp == self._stamp:
                    reported = ""
                    continue
                keys = read_keys(self._file)
            except (OSError, ValueError) as error:
                if reported != str(error):
                    reported = str(error)
                    log.error("the keys from before hold on, as %s is wrong: %s", self._file, error)
                continue
            self._take(keys)
            self._stamp, reported = stamp, ""
            log.info("%d keys of %s hold from now on", len(keys.keys), self._file)
