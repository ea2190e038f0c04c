"""The webhook's own certificates: a certificate authority that only the API server trusts, and the certificate that it signs. Pure.

An authority lasts ten years and a certificate 90 days, renewed when a third is left. A new authority is announced a year before the old one
ends and signs nothing until the next renewal, when the API server has long known it: so no renewal leaves a moment without trust.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY_LASTS = timedelta(days=3650)
AUTHORITY_RENEWED_BEFORE = timedelta(days=365)
CERTIFICATE_LASTS = timedelta(days=90)
CERTIFICATE_RENEWED_BEFORE = timedelta(days=30)
CLOCK_DIFFERENCE = timedelta(hours=1)
"""Certificates are valid from so long before: clocks of machines differ."""

_AUTHORITIES, _AUTHORITY_KEY, _CERTIFICATE, _KEY = "ca.crt", "ca.key", "tls.crt", "tls.key"


@dataclass(frozen=True, slots=True)
class Certificates:
    """PEM texts, as the Secret holds them. `authorities`: those to trust, the one that signs next first."""

    authorities: str
    authority_key: str
    certificate: str
    key: str

    def to_data(self) -> dict[str, str]:
        return {_AUTHORITIES: self.authorities, _AUTHORITY_KEY: self.authority_key, _CERTIFICATE: self.certificate, _KEY: self.key}


def renewed(data: dict[str, str], names: Sequence[str], now: datetime) -> Certificates:
    """The certificates to use from now on: those of the Secret where they hold, new ones in place of the others.

    Parameters:
        data: what the Secret holds, decoded; empty or damaged parts are made anew.
        names: DNS names or addresses that the API server asks for.
        now: UTC.
    """
    found = _read(data, now)
    if found is None:
        return _signed(_with_new_authority(now, ""), names, now)
    if _ends(_first(found.authorities)) - now < AUTHORITY_RENEWED_BEFORE:
        found = replace(_with_new_authority(now, found.authorities), certificate=found.certificate, key=found.key)
    return found if _holds(found, names, now) else _signed(found, names, now)


def certificate_ends(certificates: Certificates) -> datetime:
    return _ends(_first(certificates.certificate))


def _read(data: dict[str, str], now: datetime) -> Certificates | None:
    """None: there is no authority to go on with."""
    try:
        valid = [each for each in _all(data[_AUTHORITIES]) if _ends(each) > now]
        key = _private_key(data[_AUTHORITY_KEY])
        if not valid or valid[0].public_key() != key.public_key():
            return None
    except (KeyError, ValueError, TypeError):
        return None
    return Certificates("".join(map(_pem, valid)), data[_AUTHORITY_KEY], data.get(_CERTIFICATE, ""), data.get(_KEY, ""))


def _holds(found: Certificates, names: Sequence[str], now: datetime) -> bool:
    """Is the certificate signed by an authority of ours, for these names, by the key that is there, and does it last?"""
    try:
        certificate = _first(found.certificate)
        if _private_key(found.key).public_key() != certificate.public_key():
            return False
        its_names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, TypeError, x509.ExtensionNotFound):
        return False
    return (
        _ends(certificate) - now >= CERTIFICATE_RENEWED_BEFORE
        and certificate.not_valid_before_utc <= now
        and its_names == _alternative_names(names)
        and any(_is_signed_by(certificate, authority) for authority in _all(found.authorities))
    )


def _is_signed_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except Exception:  # noqa: BLE001 - InvalidSignature, ValueError or TypeError, by kind of key
        return False
    return True


def _with_new_authority(now: datetime, others: str) -> Certificates:
    key = ec.generate_private_key(ec.SECP256R1())
    serial = x509.random_serial_number()
    # The serial number makes the name another one: of two authorities of one name a client may try the wrong one only.
    name = _name(f"tabletune-admission-authority-{serial:x}"[:64])
    builder = _builder(name, key.public_key(), now, AUTHORITY_LASTS).issuer_name(name).serial_number(serial)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    usage = x509.KeyUsage(
        digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    authority = builder.add_extension(usage, critical=True).sign(key, hashes.SHA256())
    return Certificates(_pem(authority) + others, _key_pem(key), "", "")


def _signed(found: Certificates, names: Sequence[str], now: datetime) -> Certificates:
    authority, authority_key = _first(found.authorities), _private_key(found.authority_key)
    key = ec.generate_private_key(ec.SECP256R1())
    lasts = min(CERTIFICATE_LASTS, _ends(authority) - now)
    builder = _builder(_name("tabletune-admission"), key.public_key(), now, lasts).issuer_name(authority.subject)
    certificate = (
        builder.serial_number(x509.random_serial_number())
        .add_extension(_alternative_names(names), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    return replace(found, certificate=_pem(certificate), key=_key_pem(key))


def _builder(subject: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime, lasts: timedelta) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder().subject_name(subject).public_key(key)
    return builder.not_valid_before(now - CLOCK_DIFFERENCE).not_valid_after(now + lasts)


def _alternative_names(names: Sequence[str]) -> x509.SubjectAlternativeName:
    return x509.SubjectAlternativeName([_alternative_name(name) for name in names])


def _alternative_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _all(pem: str) -> list[x509.Certificate]:
    return x509.load_pem_x509_certificates(pem.encode())


def _first(pem: str) -> x509.Certificate:
    return _all(pem)[0]


def _ends(certificate: x509.Certificate) -> datetime:
    return certificate.not_valid_after_utc


def _private_key(pem: str) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(pem.encode(), password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise TypeError("a key of another kind than ours")
    return key


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _key_pem(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()).decode()
