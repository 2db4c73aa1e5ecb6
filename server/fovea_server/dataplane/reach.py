"""The hosts from which a client may make the server fetch images and camera streams."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from urllib.parse import urlsplit

from fovea_preprocess.errors import FetchRefused
from fovea_server.settings import Settings

OURS = {"Via": "1.1 fovea"}
"""Headers of the server's own requests.

A receiver can see that a proxy sent them, so it does not treat the server as a local program.
"""

# All public IPv6 addresses that IANA has assigned. Site-local, IPv4-compatible and similar
# addresses are outside.
_GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
# RFC 6052: addresses for IPv4 hosts in a network without IPv4. The last 32 bits
# are the IPv4 address.
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
# RFC 4193: private networks of IPv6. The result of `is_private` differs between Python versions.
_UNIQUE_LOCAL = ipaddress.IPv6Network("fc00::/7")
# Addresses of cloud metadata services, which contain secrets. Others have link-local addresses.
_METADATA = frozenset(map(ipaddress.ip_address, ("fd00:ec2::254", "100.100.100.200")))

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True, slots=True)
class Reach:
    """The addresses that may be reached in addition to public ones.

    Attributes:
        private: True for private networks, but not for this machine and link-local addresses.
        named: host names, addresses and networks that the operator allows.
        everywhere: True for all addresses, for a URL that the operator has given.
    """

    private: bool = False
    named: tuple[str, ...] = ()
    everywhere: bool = False

    @classmethod
    def of(cls, settings: Settings) -> Reach:
        """Return what the settings allow clients to reach."""
        named = settings.url_allow_host
        if settings.label_studio_url is not None:
            named += ((urlsplit(settings.label_studio_url).hostname or "").lower(),)
        return cls(settings.url_allow_private, named)

    def check(self, host: str, addresses: list[str]) -> None:
        """Raise FetchRefused if an address of a host may not be reached."""
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
    """Return True if an IP address belongs neither to a private network nor to this machine."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.ipv4_mapped or ip in _NAT64:
            ip = ipaddress.IPv4Address(ip.packed[-4:])
        # 6to4 and Teredo addresses lead to an IPv4 host that the client can choose.
        elif ip not in _GLOBAL_UNICAST or ip.sixtofour or ip.teredo:
            return False
    return ip.is_global and not ip.is_multicast


def is_within(ip: _Address) -> bool:
    """Return True for an address that is not loopback, link-local, reserved or a metadata service.

    IPv6 forms that may contain such an address are excluded, too.
    """
    if isinstance(ip, ipaddress.IPv6Address) and ip not in _UNIQUE_LOCAL:
        return False
    odd = ip.is_loopback or ip.is_link_local or ip.is_unspecified or ip.is_multicast
    return not odd and not ip.is_reserved and ip not in _METADATA


def _unwrap(address: str) -> _Address:
    """Return the IPv4 address inside an IPv6 address if it has one, or the address itself."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address) and (ip.ipv4_mapped or ip in _NAT64):
        return ipaddress.IPv4Address(ip.packed[-4:])
    return ip
