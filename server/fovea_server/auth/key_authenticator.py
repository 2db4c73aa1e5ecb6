"""Lets requests in by their keys, and follows the file of keys while the server runs."""

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

# What is revoked is out within this time, and that of reading the file.
_LOOK_S = 0.5
# What of a quota is lost if the server is killed.
_WRITE_EVERY = 4
_LAST_S = 2.0

_HINT = (
    "send it as Authorization: Bearer KEY or X-API-Key: KEY (Fovea's client and commands take it "
    "from FOVEA_API_KEY); `fovea key add` makes one"
)


class KeyAuthenticator:
    """Knows the keys of a file, and what they have used.

    The file is read again when it changes. What cannot be read, or is gone, changes nothing: the
    keys from before hold, and the log has the reason.

    Args:
        file: of the keys; None where only tokens of the provider let in.
        usage: what is used of the quotas; default a file beside that of the keys.
        provider: of tokens; None where there is none.
        now: the clock.

    Raises:
        InvalidOption: the file cannot be read at the start.
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
                f"there is no {file}: `fovea key add NAME --keys {file}` makes it, with a first key"
            ) from None
        except (OSError, ValueError) as error:
            raise InvalidOption(
                f"{file} is no file of keys ({error}): name another, or mend it"
            ) from None
        log.info("%s of %s hold", counted(len(self._principals), "key"), file)
        self._usage = UsageFile(usage or usage_of(file))
        if not self._share() and usage is not None:
            raise InvalidOption(
                f"--quota-file {usage} cannot be written: name a file that the server may write"
            )
        self._thread = threading.Thread(target=self._follow, args=[file], name="keys", daemon=True)
        self._thread.start()

    def principal(self, token: str | None) -> Principal:
        """Return the holder of a key.

        Raises:
            Unauthenticated: there is no key, or it does not hold.
            KeysPending: it may be a token whose provider did not answer yet.
        """
        if not token:
            raise Unauthenticated(f"this server asks for a key: {_HINT}")
        digest = digest_of(token)
        found, now = self._by_digest.get(digest), self._now()
        # The time of a look-up tells of the digest alone, which nobody can choose by its bytes.
        if found is not None and hmac.compare_digest(found[1].sha256, digest):
            principal, until = found[0], found[1].until
        elif self._provider is not None and self._provider.issues(token):
            principal, until = self._provider.principal(token, digest), None
        else:
            raise Unauthenticated(f"this key is not known here: {_HINT}")
        for end, happened in ((principal.expires, "has expired"), (until, "was replaced")):
            if end is not None and now >= end:
                raise Unauthenticated(f"{principal.called} {happened}: ask for a new one")
        return principal

    def close(self) -> None:
        """Stop looking at the file, and write what is used of the quotas."""
        self._stopped.set()
        if self._thread is not None:
            # The file may be on a disk that does not answer.
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
        # Replaced as a whole: the event loop sees the keys from before, or those from now on.
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
            # Whatever is wrong with the file: a thread that ends would revoke no key any more.
            except Exception as error:  # noqa: BLE001
                if reported != str(error):
                    reported = str(error)
                    log.error("the keys from before hold on, as %s is wrong: %s", file, error)
                continue
            self._share()
            self._stamp, reported = stamp, ""
            log.info("%s of %s hold from now on", counted(len(self._principals), "key"), file)


def _stamp_of(file: Path) -> tuple[int, ...]:
    # A mounted secret or ConfigMap is a link whose target changes.
    status = file.stat()
    return status.st_mtime_ns, status.st_size, status.st_ino, status.st_dev


def _principal(key: Key, before: LimitedPrincipal | None) -> LimitedPrincipal:
    """Make the holder of a key; a change of something else fills no bucket, and no quota."""
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
