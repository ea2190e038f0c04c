"""The webhook's certificates: what a TLS client accepts, and when they are renewed."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from tabletune_operator.certificates import Certificates, certificate_ends, renewed

NOW = datetime(2026, 12, 1, 9, tzinfo=UTC)
NAMES = ("tabletune-admission.tabletune-system.svc", "127.0.0.1")
DAY = timedelta(days=1)


def made(now: datetime = NOW) -> Certificates:
    return renewed({}, NAMES, now)


def again(found: Certificates, now: datetime) -> Certificates:
    return renewed(found.to_data(), NAMES, now)


def number(pem: str, at: int = 0) -> int:
    return x509.load_pem_x509_certificates(pem.encode())[at].serial_number


def test_they_stay_as_they_are_while_they_last() -> None:
    found = made()
    assert again(found, NOW + 59 * DAY) == found
    assert certificate_ends(found) == NOW + 90 * DAY


def test_the_certificate_is_renewed_a_month_before_it_ends_by_the_same_authority() -> None:
    found = made()
    later = again(found, NOW + 61 * DAY)
    assert (later.authorities, later.authority_key) == (found.authorities, found.authority_key)
    assert number(later.certificate) != number(found.certificate)
    assert certificate_ends(later) == NOW + 151 * DAY


def test_an_expired_certificate_is_renewed() -> None:
    found = made()
    assert certificate_ends(again(found, NOW + 400 * DAY)) == NOW + 490 * DAY


def test_a_new_authority_is_announced_before_it_signs() -> None:
    """So the API server knows it before anything depends on it, and the old one is trusted until it has ended."""
    now = NOW + 3650 * DAY - 364 * DAY
    found = again(made(), now - 2 * DAY)
    announced = again(found, now)
    assert number(announced.authorities) != number(found.authorities)
    assert number(announced.authorities, 1) == number(found.authorities)
    assert announced.certificate == found.certificate
    assert again(announced, now + DAY) == announced
    signed = again(announced, now + 70 * DAY)
    assert number(signed.certificate) != number(found.certificate)
    ended = again(signed, now + 365 * DAY)
    assert ended.authorities.count("BEGIN") == 1
    assert number(ended.authorities) == number(announced.authorities)


@pytest.mark.parametrize("name", ["ca.crt", "ca.key", "tls.crt", "tls.key"])
@pytest.mark.parametrize("value", [None, "", "nonsense", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"])
def test_what_is_damaged_is_made_anew(name: str, value: str | None) -> None:
    found = made()
    damaged = {key: text for key, text in (found.to_data() | {name: value}).items() if text is not None}
    cured = renewed(damaged, NAMES, NOW + DAY)
    assert again(cured, NOW + DAY) == cured
    assert (cured.authorities == found.authorities) is (name in {"tls.crt", "tls.key"})


@pytest.mark.parametrize("part", ["key", "certificate", "authority_key"])
def test_what_does_not_fit_together_is_made_anew(part: str) -> None:
    mixed = made().to_data() | {
        {"key": "tls.key", "certificate": "tls.crt", "authority_key": "ca.key"}[part]: getattr(made(), part),
    }
    cured = renewed(mixed, NAMES, NOW)
    assert cured.to_data() != mixed
    assert again(cured, NOW) == cured


def test_other_names_need_another_certificate() -> None:
    found = made()
    other = renewed(found.to_data(), ("other.svc",), NOW)
    assert other.authorities == found.authorities
    assert other.certificate != found.certificate


@pytest.mark.parametrize(
    ("name", "days", "accepted"),
    [
        pytest.param(NAMES[0], 0, True, id="the service's name"),
        pytest.param(NAMES[1], 0, True, id="an address"),
        pytest.param("other.svc", 0, False, id="another name"),
        pytest.param(NAMES[0], -100, False, id="expired"),
    ],
)
def test_a_client_that_trusts_the_authority_accepts_them(tmp_path: Path, name: str, days: int, *, accepted: bool) -> None:
    found = renewed({}, NAMES, datetime.now(UTC) + days * DAY)
    files = tmp_path / "both.pem"
    files.write_text(found.certificate + found.key)
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_context.load_cert_chain(files)
    client_context = ssl.create_default_context(cadata=found.authorities)
    assert _shakes_hands(server_context, client_context, name) is accepted


def _shakes_hands(server_context: ssl.SSLContext, client_context: ssl.SSLContext, name: str) -> bool:
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = server_context.wrap_bio(to_server, to_client, server_side=True)
    client = client_context.wrap_bio(to_client, to_server, server_hostname=name)
    done: set[str] = set()
    for _ in range(8):
        for side, each in (("client", client), ("server", server)):
            try:
                each.do_handshake()
                done.add(side)
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLError:
                return False
    return done == {"client", "server"}
