"""Authenticates requests by API key, and reads the key file again when it changes."""

from __future__ import annotations

import hmac
import logging
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from fovea_preprocess.errors import InvalidOption, Unauthenticated
from fovea_preprocess.text import counted
from fovea_server.auth.bucket import LimitedPrincipal, TokenBucket
from fovea_server.auth.key import Key, Keys, Rate, Secret, digest_of, read_keys
from fovea_server.auth.quota import Meter, Quota, UsageFile, usage_of
from fovea_server.traffic.principal import Principal

if TYPE_CHECKING:
    from fovea_server.auth.provider import Provider

log = logging.getLogger(__name__)

# Time in seconds between two checks of the key file. A revoked key stops working within this time.
_LOOK_S = 0.5
# Number of checks of the key file between two writes of the quota usage. If the server is killed,
# the usage after the last write is lost.
_WRITE_EVERY = 4
_LAST_S = 2.0

_HINT = (
    "send the header Authorization: Bearer KEY or X-API-Key: KEY (Fovea's client and commands "
    "read KEY from FOVEA_API_KEY); `fovea key add` creates a key"
)


class KeyAuthenticator:
    """The API keys of a file, and their owners (principals).

    The file is read again when it changes. If the new file is invalid or missing, the previous keys
    stay valid and the server logs the reason.

    Args:
        file: path of the key file; None to accept only tokens of the identity provider.
        usage: path of the file with the quota usage; None for a file in the directory of the key
            file.
        provider: identity provider; None if there is none.
        now: function that returns the current time in UTC.

    Raises:
        InvalidOption: the key file cannot be read, or `usage` cannot be written.
    """

    def __init__(
        self,
        file: Path | None,
        usage: Path | None = None,
        provider: Provider | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._file, self._provider, self._now = file, provider, now
        self._principals: dict[str, LimitedPrincipal] = {}
        self._by_digest: dict[str, tuple[Principal, Secret]] = {}
        self._stamp: tuple[int, ...] = ()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        if file is None:
            return
        try:
            self._stamp = _stamp_of(file)
            self._take(read_keys(file))
        except FileNotFoundError:
            raise InvalidOption(
                f"{file} does not exist: `fovea key add NAME --keys {file}` creates it with a "
                "first key"
            ) from None
        except (OSError, ValueError) as error:
            raise InvalidOption(
                f"{file} is not a keys file ({error}): correct it, or give another file"
            ) from None
        log.info("loaded %s from %s", counted(len(self._principals), "key"), file)
        self._usage = UsageFile(usage or usage_of(file))
        if not self._share() and usage is not None:
            raise InvalidOption(
                f"--quota-file {usage} cannot be written: give a file that the server may write"
            )
        self._thread = threading.Thread(target=self._follow, args=[file], name="keys", daemon=True)
        self._thread.start()

    def principal(self, token: str | None) -> Principal:
        """Return the principal of an API key or token.

        Raises:
            Unauthenticated: there is no token, or it is unknown, expired or replaced.
            KeysPending: the server is fetching the keys of the identity provider again.
        """
        if not token:
            raise Unauthenticated(f"this server requires a key: {_HINT}")
        digest = digest_of(token)
        found, now = self._by_digest.get(digest), self._now()
        # The look-up in the dict is safe: its duration depends only on the digest, and a client
        # cannot choose the bytes of a SHA-256 digest.
        if found is not None and hmac.compare_digest(found[1].sha256, digest):
            principal, until = found[0], found[1].until
        elif self._provider is not None and self._provider.issues(token):
            principal, until = self._provider.principal(token, digest), None
        else:
            raise Unauthenticated(f"unknown key: {_HINT}")
        for end, happened in ((principal.expires, "has expired"), (until, "was replaced")):
            if end is not None and now >= end:
                raise Unauthenticated(f"{principal.called} {happened}: request a new key")
        return principal

    def close(self) -> None:
        """Stop watching the key file, and write the usage of the quotas."""
        self._stopped.set()
        if self._thread is not None:
            # Wait only for a limited time, because the file may be on a disk that does not respond.
            self._thread.join(_LAST_S)
            self._share()
        if self._provider is not None:
            self._provider.close()

    def _share(self) -> bool:
        principals = list(self._principals.values())
        return self._usage.share(
            (each.name, each.meter) for each in principals if each.meter is not None
        )

    def _take(self, keys: Keys) -> None:
        principals = {
            key.name: _principal(key, self._principals.get(key.name)) for key in keys.keys
        }
        # Replace the whole dict, so that the event loop uses either only old or only new keys.
        self._by_digest = {
            secret.sha256: (principals[key.name], secret)
            for key in keys.keys
            for secret in key.secrets
        }
        self._principals = principals

    def _follow(self, file: Path) -> None:
        reported, looks = "", 0
        while not self._stopped.wait(_LOOK_S):
            looks += 1
            try:
                if looks % _WRITE_EVERY == 0:
                    self._share()
                stamp = _stamp_of(file)
                if stamp == self._stamp:
                    reported = ""
                    continue
                self._take(read_keys(file))
            # Catch every exception, because the file can cause any error. If this thread ended,
            # revoked keys would stay valid.
            except Exception as error:  # noqa: BLE001
                if reported != str(error):
                    reported = str(error)
                    log.error("%s is invalid, and the previous keys stay valid: %s", file, error)
                continue
            self._share()
            self._stamp, reported = stamp, ""
            log.info("loaded %s from %s", counted(len(self._principals), "key"), file)


def _stamp_of(file: Path) -> tuple[int, ...]:
    # Follow symbolic links: a mounted secret or ConfigMap is a symbolic link whose target changes.
    status = file.stat()
    return status.st_mtime_ns, status.st_size, status.st_ino, status.st_dev


def _principal(key: Key, before: LimitedPrincipal | None) -> LimitedPrincipal:
    """Return the principal of an API key.

    Args:
        key: entry of the key file.
        before: principal of the key before the file changed; None for a new key. If the rate is
            unchanged, its token bucket is kept. If the period of the quota is unchanged, its count
            is kept.
    """
    bucket, meter = (None, None) if before is None else (before.bucket, before.meter)
    rate = None if key.rate is None else Rate.parse(key.rate)
    if bucket is None or bucket.rate != rate:
        bucket = None if rate is None else TokenBucket(rate)
    quota = None if key.quota is None else Quota.parse(key.quota)
    if quota is None:
        meter = None
    elif meter is None or meter.quota != quota:
        used = meter.count if meter is not None and meter.quota.unit == quota.unit else None
        meter = Meter(quota, used=used)
    return LimitedPrincipal(
        key.name, key.name, frozenset(key.scopes), key.models, key.expires, bucket, meter
    )
