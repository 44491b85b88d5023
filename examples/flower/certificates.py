"""Certificates for TLS on the loopback: an authority of one's own, and a server's certificate.

With `openssl` instead:

    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 \
        -keyout ca.key -out ca.pem -subj "/CN=local authority"
    openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes \
        -keyout server.key -out server.csr -subj "/CN=localhost"
    openssl x509 -req -in server.csr -CA ca.pem -CAkey ca.key -days 30 -out server.pem \
        -extfile <(echo "subjectAltName=DNS:localhost,IP:127.0.0.1")
"""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_DAYS = 30


@dataclass(frozen=True)
class Certificates:
    """Paths of PEM files."""

    authority: Path
    certificate: Path
    key: Path


def make_certificates(folder: Path) -> Certificates:
    """New ones. The authority's key is not kept: nobody can sign another certificate with it."""
    ca_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    name = _name("local authority")
    authority = _builder(name, name, ca_key.public_key()).add_extension(
        x509.BasicConstraints(ca=True, path_length=0), critical=True
    )
    addresses = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    server = _builder(_name("localhost"), name, key.public_key()).add_extension(
        x509.SubjectAlternativeName(addresses), critical=False
    )
    paths = Certificates(folder / "ca.pem", folder / "server.pem", folder / "server.key")
    for path, builder in ((paths.authority, authority), (paths.certificate, server)):
        signed = builder.sign(ca_key, hashes.SHA256())
        path.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    paths.key.touch(mode=0o600)
    paths.key.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return paths


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=_DAYS))
    )
