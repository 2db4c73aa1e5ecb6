"""The address of a model repository in a store."""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import sha256
from typing import Self

from fovea_server.stores import Follower, FollowPlan, StoreAddress


@dataclass(frozen=True, slots=True)
class Address(StoreAddress):
    """An address such as s3://bucket/prefix; it holds no secrets, so it may be logged.

    Attributes:
        url: without a slash at its end.
    """

    url: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read an address; ValueError says what is wrong."""
        scheme, _, rest = text.partition("://")
        scheme, rest = scheme.lower(), rest.rstrip("/")
        host, _, path = rest.partition("/")
        # hf://org/name@revision has its @ in the path; one behind a colon ends a password.
        if "@" in host or (scheme == "hf" and re.search(r":[^/]*@", rest)):
            raise ValueError(
                f"{scheme}://***@{host.rpartition('@')[2]} has credentials in it, which others "
                "could read: give them in the environment"
            )
        if re.search(r"[?#*\[\]\\\s]|::", rest):
            raise ValueError(
                f"{scheme}://{host} and what follows may have no ?, #, *, [], \\, :: or blanks: "
                "give the folder that holds the models; credentials belong in the environment"
            )
        if not host or {"", ".", ".."} & set(path.split("/") if path else ()):
            raise ValueError(f"{text} is not whole: give it as {scheme}://{_FORMS[scheme]}")
        if scheme == "hf" and not path:
            raise ValueError(f"{text} is not whole: give it as hf://{_FORMS['hf']}")
        return cls(f"{scheme}://{rest}")

    def __str__(self) -> str:
        return self.url

    def follow(self, plan: FollowPlan) -> Follower:
        """Prepare the mirror; see `StoreAddress.follow`."""
        # Not at the top: these modules import this one.
        from fovea_stores.follower import MirrorFollower
        from fovea_stores.mirror import Mirror

        only, described = plan.only, plan.described
        mirror = Mirror(self, plan.cache, plan.most_bytes, only, described=described)
        return MirrorFollower(mirror, every_s=plan.every_s, polls=plan.polls)

    @property
    def scheme(self) -> str:
        """The part before ://."""
        return self.url.partition(":")[0]

    @property
    def folder_name(self) -> str:
        """A name for a local folder: no other address has the same."""
        readable = re.sub(r"[^A-Za-z0-9_.-]+", "-", self.url)[:80]
        return f"{readable}-{sha256(self.url.encode()).hexdigest()[:12]}"


_FORMS = {
    "s3": "BUCKET/PREFIX",
    "gs": "BUCKET/PREFIX",
    "az": "CONTAINER/PREFIX",
    "hf": "ORG/NAME@REVISION/PREFIX",
    "https": "HOST/PATH",
    "http": "HOST/PATH",
}
