"""Which addresses a webhook may be sent to. Imports settings only.

Whoever may submit a job may name a URL that this machine will connect to. So: https on listed ports, no address of this
machine or its network, and the address that was checked is the address that is connected to (worker/webhooks.py).
"""

from __future__ import annotations

import asyncio
import re
import socket
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

import httpx

from engine.errors import FieldcastError
from worker.settings import Settings

MAX_URL_CHARACTERS = 2048
DEFAULT_PORTS = {"https": 443, "http": 80}
_HOST_NAME = re.compile(r"[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})*")  # httpx escapes what is none, as `[` to `%5b`

# All of the IANA special-purpose registry: `ipaddress.is_global` lets some of it through (Python 3.11).
_REFUSED_V4 = tuple(
    ip_network(n)
    for n in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # carrier-grade NAT
        "127.0.0.0/8",  # loopback
        "168.63.129.16/32",  # Azure's metadata service, on an otherwise public address
        "169.254.0.0/16",  # link-local, with the other clouds' metadata services
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # protocol assignments
        "192.0.2.0/24",  # documentation
        "192.31.196.0/24",  # AS112
        "192.52.193.0/24",  # AMT
        "192.88.99.0/24",  # 6to4 relays
        "192.168.0.0/16",  # private
        "192.175.48.0/24",  # AS112
        "198.18.0.0/15",  # benchmarking
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved and broadcast
    )
)
# Of IPv6 only global unicast can be meant. That leaves out loopback, unique local, link-local, multicast, IPv4-mapped
# and IPv4-compatible (::/96), NAT64 (64:ff9b::/96 and 64:ff9b:1::/48), discard-only (100::/64) and segment routing
# (5f00::/16).
_GLOBAL_UNICAST = ip_network("2000::/3")
_REFUSED_V6 = tuple(
    ip_network(n)
    for n in (
        "2001::/23",  # protocol assignments: Teredo, benchmarking, ORCHID
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4, which holds an IPv4 address
        "2620:4f:8000::/48",  # AS112
        "3fff::/20",  # documentation
    )
)


class AddressRefused(FieldcastError):
    """The URL, or an address of its host, may not be connected to."""

    type = "webhook_url_refused"


@dataclass(frozen=True)
class Target:
    """A URL that passed `check_url`, in parts. `host` is in ASCII (IDNA), lower case, without a trailing dot."""

    url: httpx.URL
    host: str
    port: int
    private_allowed: bool


def check_url(url: str, settings: Settings) -> Target:
    """Checks what can be told without a look-up. Raises `AddressRefused` that says which rule is broken."""
    if len(url) > MAX_URL_CHARACTERS:
        raise AddressRefused(f"has over {MAX_URL_CHARACTERS} characters")
    if any(c.isspace() or ord(c) < 32 or c == "\\" for c in url):
        raise AddressRefused("holds a space, a control character or a backslash")
    try:
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, ValueError, UnicodeError):
        raise AddressRefused("is not a valid URL") from None
    schemes = ("https", "http") if settings.webhook_allow_http else ("https",)
    if parsed.scheme not in schemes:
        raise AddressRefused(f"must start with {' or '.join(f'{s}://' for s in schemes)}")
    if parsed.userinfo:
        raise AddressRefused("must not hold a user name or password")
    host = parsed.raw_host.decode("ascii").lower().rstrip(".")
    if not host:
        raise AddressRefused("names no host")
    port = DEFAULT_PORTS[parsed.scheme] if parsed.port is None else parsed.port
    if port not in settings.webhook_allowed_ports:
        allowed = ", ".join(map(str, settings.webhook_allowed_ports))
        raise AddressRefused(f"uses port {port}; the allowed ports are {allowed}")
    private_allowed = host in {h.lower().rstrip(".") for h in settings.webhook_allowed_private_hosts}
    if not private_allowed:
        _check_host(host)
    return Target(parsed.copy_with(fragment=None), host, port, private_allowed)


def is_public(address: IPv4Address | IPv6Address) -> bool:
    """Whether `address` is a host on the public internet, and stands for no other address."""
    if isinstance(address, IPv4Address):
        return address.is_global and not any(address in n for n in _REFUSED_V4)
    return address.is_global and address in _GLOBAL_UNICAST and not any(address in n for n in _REFUSED_V6)


async def resolve(target: Target) -> tuple[str, ...]:
    """The host's addresses, in the order to try them. Looked up once; one refused address refuses the host.

    Raises `AddressRefused`, or `OSError` when the name cannot be looked up.
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    addresses = tuple(dict.fromkeys(str(info[4][0]) for info in found))
    if not target.private_allowed and not all(is_public(ip_address(a)) for a in addresses):
        # Not which address: that would tell a stranger about the network's names.
        raise AddressRefused("its host has an address that is not on the public internet")
    return addresses


def _check_host(host: str) -> None:
    if host == "localhost" or host.endswith((".localhost", ".local", ".internal", ".home.arpa")):
        raise AddressRefused("its host is not on the public internet")
    try:
        address = ip_address(host)
    except ValueError:
        # `127.1`, `0x7f000001` and `2130706433` are addresses to the resolver, though not to `ipaddress`.
        try:
            socket.inet_aton(host)
        except OSError:
            if not _HOST_NAME.fullmatch(host):
                raise AddressRefused("is not a valid URL") from None
            return
        raise AddressRefused("its host is an IP address in an unusual form") from None
    if not is_public(address):
        raise AddressRefused("its host is an address that is not on the public internet")
