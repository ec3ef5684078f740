"""A cluster's keys and certificates: three certificate authorities, each trusted for one purpose only.

`ca` signs the API server and its clients, `etcd-ca` limits access to the database to the API server, `front-proxy-ca`
is for aggregated APIs. The set is created atomically, by rename.
"""

from __future__ import annotations

import datetime
import ipaddress
import shutil
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

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


def create(directory: Path, *, addresses: Sequence[str], now: datetime.datetime) -> None:
    """Create the keys and certificates unless they exist. `addresses` are the API server's."""
    if directory.exists():
        return
    unfinished = directory.with_suffix(".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(mode=0o700, parents=True)
    ca = _Authority(unfinished, "ca", now)
    ca.issue("apiserver", [_SERVER], names=(*_SERVICE_NAMES, *addresses))
    ca.issue("admin", [_CLIENT], common_name="kubernetes-admin", group="system:masters")
    ca.issue("kubelet-client", [_CLIENT], common_name="kube-apiserver", group="system:masters")
    etcd = _Authority(unfinished, "etcd-ca", now)
    etcd.issue("etcd-server", [_SERVER, _CLIENT], names=("localhost", "127.0.0.1"))
    etcd.issue("etcd-client", [_CLIENT])
    _Authority(unfinished, "front-proxy-ca", now).issue("front-proxy-client", [_CLIENT])
    key = ec.generate_private_key(ec.SECP256R1())
    _write_key(unfinished / "service-account.key", key)
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    (unfinished / "service-account.pub").write_bytes(public)
    unfinished.rename(directory)


class _Authority:
    """A new authority; its certificate and those that it issues are written to a folder, each with its key."""

    def __init__(self, directory: Path, name: str, now: datetime.datetime) -> None:
        self._directory = directory
        self._now = now
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._subject = _name(f"simgpu-{name}")
        self._sign(name, self._builder(self._subject, self._key, ca=True), self._key)

    def issue(
        self,
        name: str,
        usages: list[x509.ObjectIdentifier],
        *,
        names: Sequence[str] = (),
        common_name: str = "",
        group: str = "",
    ) -> None:
        """Issue a certificate for these usages; `names` are a server's host names and addresses."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = self._builder(_name(common_name or name, group), key, ca=False)
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        if names:
            alternatives = x509.SubjectAlternativeName([_general_name(item) for item in names])
            builder = builder.add_extension(alternatives, critical=False)
        self._sign(name, builder, key)

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, *, ca: bool) -> x509.CertificateBuilder:
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
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(self._now - _CLOCK_SKEW)
            .not_valid_after(self._now + _LIFETIME)
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(issuer, critical=False)
        )

    def _sign(self, name: str, builder: x509.CertificateBuilder, key: ec.EllipticCurvePrivateKey) -> None:
        certificate = builder.sign(self._key, hashes.SHA256())
        (self._directory / f"{name}.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        _write_key(self._directory / f"{name}.key", key)


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


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    path.touch(mode=0o600)
    path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
