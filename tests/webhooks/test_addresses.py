"""No webhook reaches this machine, its network, or an address that stands for one of them."""

from __future__ import annotations

import asyncio
from ipaddress import ip_address
from pathlib import Path

import httpx
import pytest

from worker.addresses import AddressRefused, Target, check_url, is_public, resolve
from worker.settings import Settings

_REFUSED = """
0.0.0.0 0.1.2.3 10.0.0.1 10.255.255.255 100.64.0.1 100.100.100.200 100.127.255.255 127.0.0.1 127.255.255.254
168.63.129.16 169.254.169.254 172.16.0.1 172.31.255.255 192.0.0.8 192.0.0.170 192.0.2.1 192.31.196.1 192.52.193.1
192.88.99.1 192.168.1.1 192.175.48.1 198.18.0.1 198.19.255.255 198.51.100.7 203.0.113.9 224.0.0.1 239.255.255.255
240.0.0.1 255.255.255.255
:: ::1 ::127.0.0.1 ::8.8.8.8 ::ffff:127.0.0.1 ::ffff:8.8.8.8 ::ffff:0:8.8.8.8 64:ff9b::7f00:1 64:ff9b::808:808
64:ff9b:1::1 100::1 100:0:0:1::1 2001::1 2001:0:53aa:64c::1 2001:2::1 2001:10::1 2001:20::1 2001:db8::1 2002:7f00:1::1
2620:4f:8000::1 3fff::1 3fff:fff::1 4000::1 5f00::1 fc00::1 fd00:ec2::254 fe80::1 fec0::1 ff02::1 ff0e::1
"""
_PUBLIC = """
1.1.1.1 8.8.8.8 100.63.255.255 100.128.0.1 172.15.0.1 172.32.0.1 192.0.1.1 198.17.0.1 223.255.255.255
2606:4700:4700::1111 2001:4860:4860::8888 2a00:1450:4001:81b::200e 2001:200::1 2003::1
"""


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(data_dir=tmp_path)


@pytest.mark.parametrize("address", _REFUSED.split())
def test_special_addresses_are_refused(address: str, settings: Settings) -> None:
    assert not is_public(ip_address(address))
    with pytest.raises(AddressRefused):
        check_url(f"https://{f'[{address}]' if ':' in address else address}/hook", settings)


@pytest.mark.parametrize("address", _PUBLIC.split())
def test_public_addresses_are_accepted(address: str, settings: Settings) -> None:
    target = check_url(f"https://{f'[{address}]' if ':' in address else address}/hook", settings)
    assert ip_address(target.host) == ip_address(address)
    assert target.port == 443


@pytest.mark.parametrize(
    "host",
    [
        "127.1",
        "127.0.1",
        "2130706433",
        "0x7f000001",
        "0x7f.0.0.1",
        "0177.0.0.1",
        "127.0.0.1.",
        "localhost",
        "LOCALHOST.",
        "a.localhost",
        "printer.local",
        "metadata.google.internal",
        "nas.home.arpa",
        "[::ffff:7f00:1]",
        "[fe80::1%25eth0]",
        "１２７.0.0.1",
        "127。0。0。1",
    ],
)
def test_other_spellings_of_local_addresses_are_refused(host: str, settings: Settings) -> None:
    with pytest.raises(AddressRefused):
        check_url(f"https://{host}/hook", settings)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://example.com/", "https://"),
        ("ftp://example.com/", "https://"),
        ("file:///etc/passwd", "https://"),
        ("gopher://example.com/", "https://"),
        ("example.com/hook", "https://"),
        ("https://example.com:22/", "port 22"),
        ("https://example.com:6379/", "port 6379"),
        ("https://example.com:0/", "port"),
        ("https://user@example.com/", "user name"),
        ("https://user:pass@example.com/", "user name"),
        ("https://example.com\\@127.0.0.1/", "backslash"),
        ("https://exa mple.com/", "space"),
        ("https://example.com/\r\nHost: a", "control"),
        ("https://example.com:99999/", "port 99999"),
        ("https://example.com:port/", "valid URL"),
        ("https:///hook", "no host"),
        ("https://[::1", "valid URL"),
        ("https://example.com/" + "a" * 2048, "2048"),
        ("", "https://"),
    ],
)
def test_malformed_and_unlisted_urls_are_refused(url: str, why: str, settings: Settings) -> None:
    with pytest.raises(AddressRefused, match=why):
        check_url(url, settings)


def test_a_name_is_accepted_in_its_ascii_form(settings: Settings) -> None:
    assert check_url("https://Bücher.Example/x?y=1#z", settings).url == httpx.URL("https://xn--bcher-kva.example/x?y=1")


def test_only_the_named_private_host_is_allowed(tmp_path: Path) -> None:
    settings = Settings(
        data_dir=tmp_path,
        webhook_allow_http=True,
        webhook_allowed_private_hosts=("Hooks.internal", "10.0.0.5"),
        webhook_allowed_ports=(80, 8080),
    )
    assert check_url("http://hooks.INTERNAL:8080/", settings).private_allowed
    assert check_url("http://10.0.0.5/", settings).private_allowed
    for url in ("http://10.0.0.6/", "http://a.hooks.internal/", "http://localhost/", "http://hooks.internal:8081/"):
        with pytest.raises(AddressRefused):
            check_url(url, settings)


def test_a_name_that_leads_to_a_local_address_is_refused() -> None:
    def target(private_allowed: bool) -> Target:
        return Target(httpx.URL("https://localhost/"), "localhost", 443, private_allowed)

    with pytest.raises(AddressRefused):
        asyncio.run(resolve(target(private_allowed=False)))
    assert set(asyncio.run(resolve(target(private_allowed=True)))) <= {"127.0.0.1", "::1"}
