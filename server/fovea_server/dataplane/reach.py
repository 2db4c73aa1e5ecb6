"""The hosts from which a client may make the server fetch images and camera streams."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from urllib.parse import urlsplit

from fovea_preprocess.errors import FetchRefused
from fovea_server.settings import Settings

OURS = {"Via": "1.1 fovea"}
"""Headers of the server's own requests.

The header `Via` marks them as requests of a proxy, so another Fovea server does not treat this
server as a local client.
"""

# The public IPv6 addresses that IANA has assigned. Site-local, IPv4-compatible and similar
# addresses are outside.
_GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
# Addresses of IPv4 hosts in a network without IPv4 (RFC 6052). The last 32 bits are the IPv4
# address.
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
# Private networks of IPv6 (RFC 4193). `is_private` is not used, because its result differs between
# Python versions.
_UNIQUE_LOCAL = ipaddress.IPv6Network("fc00::/7")
# Addresses of cloud metadata services, which contain secrets. Other metadata services have
# link-local addresses.
_METADATA = frozenset(map(ipaddress.ip_address, ("fd00:ec2::254", "100.100.100.200")))

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True, slots=True)
class Reach:
    """The addresses that the server may open for a client, in addition to public addresses.

    Attributes:
        private: True to allow private networks, but neither this machine nor link-local addresses.
        named: host names, addresses and networks that the operator allows.
        everywhere: True to allow all addresses, for a URL from the operator.
    """

    private: bool = False
    named: tuple[str, ...] = ()
    everywhere: bool = False

    @classmethod
    def of(cls, settings: Settings) -> Reach:
        """Return the addresses that the server may open for URLs from clients."""
        named = settings.url_allow_host
        if settings.label_studio_url is not None:
            named += ((urlsplit(settings.label_studio_url).hostname or "").lower(),)
        return cls(settings.url_allow_private, named)

    def check(self, host: str, addresses: list[str]) -> None:
        """Raise FetchRefused if one of the addresses of a host is not allowed."""
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
    """Return whether an IP address is public: outside private networks, and not on this machine."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.ipv4_mapped or ip in _NAT64:
            ip = ipaddress.IPv4Address(ip.packed[-4:])
        # 6to4 and Teredo addresses lead to an IPv4 host that the client can choose, so they are not
        # public.
        elif ip not in _GLOBAL_UNICAST or ip.sixtofour or ip.teredo:
            return False
    return ip.is_global and not ip.is_multicast


def is_within(ip: _Address) -> bool:
    """Return whether an address may belong to a private network.

    Loopback, link-local and reserved addresses and the addresses of metadata services are excluded.
    IPv6 addresses outside fc00::/7 are excluded too, because they may contain such an address.
    """
    if isinstance(ip, ipaddress.IPv6Address) and ip not in _UNIQUE_LOCAL:
        return False
    odd = ip.is_loopback or ip.is_link_local or ip.is_unspecified or ip.is_multicast
    return not odd and not ip.is_reserved and ip not in _METADATA


def _unwrap(address: str) -> _Address:
    """Return the IPv4 address inside an IPv6 address.

    If there is none, return the address itself.
    """
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address) and (ip.ipv4_mapped or ip in _NAT64):
        return ipaddress.IPv4Address(ip.packed[-4:])
    return ip
