"""The hosts that a client may send the server to, for images and cameras."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from urllib.parse import urlsplit

from fovea_preprocess.errors import FetchRefused
from fovea_server.settings import Settings

OURS = {"Via": "1.1 fovea"}
"""Headers of what the server fetches: nobody may take it for a program of this machine."""

# All that IANA has given out as public IPv6; outside lie site-local, IPv4-compatible and the like.
_GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
# RFC 6052: how a network without IPv4 names an IPv4 host, in the last 32 bits.
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
# RFC 4193: the private networks of IPv6. `is_private` differs between versions of Python.
_UNIQUE_LOCAL = ipaddress.IPv6Network("fc00::/7")
# Where clouds tell a machine its secrets, beside link-local addresses.
_METADATA = frozenset(map(ipaddress.ip_address, ("fd00:ec2::254", "100.100.100.200")))

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True, slots=True)
class Reach:
    """What may be reached beside public addresses.

    Attributes:
        private: private networks, but not this machine nor link-local addresses.
        named: names, addresses and networks of the operator.
        everywhere: whatever there is: the operator has named the very address.
    """

    private: bool = False
    named: tuple[str, ...] = ()
    everywhere: bool = False

    @classmethod
    def of(cls, settings: Settings) -> Reach:
        """Return what the settings allow to clients."""
        named = settings.url_allow_host
        if settings.label_studio_url is not None:
            named += ((urlsplit(settings.label_studio_url).hostname or "").lower(),)
        return cls(settings.url_allow_private, named)

    def check(self, host: str, addresses: list[str]) -> None:
        """Raise FetchRefused if one of the addresses of a host may not be reached."""
        if self.everywhere or host.lower() in self.named:
            return
        for text in addresses:
            if is_public(text) or self._is_named(ip := _unwrap(text)):
                continue
            if not is_within(ip):
                raise FetchRefused(
                    f"the host '{host}' is this machine, or has a link-local address: start the "
                    f"server with --url-allow-host {host} to allow it"
                )
            if not self.private:
                raise FetchRefused(
                    f"the host '{host}' is not a public address: allow local networks with "
                    f"--url-allow-private, or this host with --url-allow-host {host}"
                )

    def _is_named(self, ip: _Address) -> bool:
        for each in self.named:
            try:
                if ip in ipaddress.ip_network(each, strict=False):
                    return True
            except ValueError:
                continue
        return False


EVERYWHERE = Reach(everywhere=True)


def is_public(address: str) -> bool:
    """Return True for an IP address that is neither of a private network nor of this machine."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.ipv4_mapped or ip in _NAT64:
            ip = ipaddress.IPv4Address(ip.packed[-4:])
        # 6to4 and Teredo tunnel to an IPv4 host of the sender's choice.
        elif ip not in _GLOBAL_UNICAST or ip.sixtofour or ip.teredo:
            return False
    return ip.is_global and not ip.is_multicast


def is_within(ip: _Address) -> bool:
    """Return True for an address that is neither of this machine, nor of one link, nor a cloud's.

    Nor is it a form of IPv6 in which such an address may be hidden.
    """
    if isinstance(ip, ipaddress.IPv6Address) and ip not in _UNIQUE_LOCAL:
        return False
    odd = ip.is_loopback or ip.is_link_local or ip.is_unspecified or ip.is_multicast
    return not odd and not ip.is_reserved and ip not in _METADATA


def _unwrap(address: str) -> _Address:
    """Return the IPv4 address that one of IPv6 stands for, or itself."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address) and (ip.ipv4_mapped or ip in _NAT64):
        return ipaddress.IPv4Address(ip.packed[-4:])
    return ip
