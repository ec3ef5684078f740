"""A cluster's keys and certificates: three certificate authorities, each trusted for one purpose only.

`ca` signs the API server and its clients, `etcd-ca` limits access to the database to the API server, `front-proxy-ca`
is for aggregated APIs. The set is created atomically, by rename.
"""

from __future__ import annotations

import datetime
import ipaddress
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

if TYPE_CHECKING:
    from collections.abc import Sequence

_LIFETIME = datetime.timedelta(days=3650)
_CLOCK_SKEW = datetime.timedelta(days=1)
_CLIENT = ExtendedKeyUsageOID.CLIENT_AUTH
_SERVER = ExtendedKeyUsageOID.SERVER_AUTH
_SERVICE_NAMES = (
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
)


class _Authority(msgspec.Struct):
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def create(directory: Path, *, addresses: Sequence[str], now: datetime.datetime) -> None:
    """Create the keys and certificates unless they exist. `addresses` are the API server's."""
    if directory.exists():
        return
    unfinished = directory.with_suffix(".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(mode=0o700, parents=True)
    ca = _authority(unfinished, "ca", now)
    names = (*_SERVICE_NAMES, *addresses)
    _issue(unfinished, ca, "apiserver", now=now, usages=[_SERVER], names=names)
    _issue(
        unfinished,
        ca,
        "admin",
        now=now,
        usages=[_CLIENT],
        common_name="kubernetes-admin",
        group="system:masters",
    )
    _issue(
        unfinished,
        ca,
        "kubelet-client",
        now=now,
        usages=[_CLIENT],
        common_name="kube-apiserver",
        group="system:masters",
    )
    etcd = _authority(unfinished, "etcd-ca", now)
    _issue(unfinished, etcd, "etcd-server", now=now, usages=[_SERVER, _CLIENT], names=("localhost", "127.0.0.1"))
    _issue(unfinished, etcd, "etcd-client", now=now, usages=[_CLIENT])
    proxy = _authority(unfinished, "front-proxy-ca", now)
    _issue(unfinished, proxy, "front-proxy-client", now=now, usages=[_CLIENT])
    key = ec.generate_private_key(ec.SECP256R1())
    _write_key(unfinished / "service-account.key", key)
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    (unfinished / "service-account.pub").write_bytes(public)
    unfinished.rename(directory)


def _authority(directory: Path, name: str, now: datetime.datetime) -> _Authority:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _name(f"simgpu-{name}")
    certificate = _builder(subject, subject, key, key, now=now, ca=True).sign(key, hashes.SHA256())
    _write_pair(directory, name, certificate, key)
    return _Authority(certificate, key)


def _issue(
    directory: Path,
    authority: _Authority,
    name: str,
    *,
    now: datetime.datetime,
    usages: list[x509.ObjectIdentifier],
    names: Sequence[str] = (),
    common_name: str = "",
    group: str = "",
) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _name(common_name or name, group)
    builder = _builder(subject, authority.certificate.subject, key, authority.key, now=now, ca=False)
    builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
    if names:
        builder = builder.add_extension(
            x509.SubjectAlternativeName([_general_name(item) for item in names]), critical=False
        )
    _write_pair(directory, name, builder.sign(authority.key, hashes.SHA256()), key)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    issuer_key: ec.EllipticCurvePrivateKey,
    *,
    now: datetime.datetime,
    ca: bool,
) -> x509.CertificateBuilder:
    """Return a builder with what all certificates have; strict clients require the key identifiers."""
    usage = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=ca,
        crl_sign=ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + _LIFETIME)
        .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
    )


def _name(common_name: str, group: str = "") -> x509.Name:
    parts = [x509.NameAttribute(NameOID.COMMON_NAME, common_name)]
    if group:
        parts.insert(0, x509.NameAttribute(NameOID.ORGANIZATION_NAME, group))
    return x509.Name(parts)


def _general_name(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _write_pair(directory: Path, name: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
    (directory / f"{name}.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    _write_key(directory / f"{name}.key", key)


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    path.touch(mode=0o600)
    path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
