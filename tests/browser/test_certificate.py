"""The certificate of the documented command, in a real browser and in Python.

Chromium trusts one public key here (``--ignore-certificate-errors-spki-list``), as it trusts that
of a certificate from a public authority. The handshake itself is the ordinary one: with a signature
algorithm that Chromium does not offer, the server has no certificate for it and ends the handshake.
"""

from __future__ import annotations

import base64
import hashlib
import re
import shlex
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from shoal.study.starters import read_starter
from tests.browser.conftest import CHROMIUM
from tests.support.servers import Coordinator

GUIDE = Path(__file__).parent.parent.parent / "docs" / "guide" / "serving.md"
NAME = "study.example.org"

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="There is no openssl.")


def make_certificate(home: Path, *replaced: str) -> x509.Certificate:
    """Run the command of the guide; ``replaced`` are its words for the kind of key."""
    (line,) = re.findall(r"^openssl req .*$", GUIDE.read_text("utf-8"), re.MULTILINE)
    words = shlex.split(line)
    if replaced:
        start = words.index("-newkey")
        words[start : words.index("-nodes")] = replaced
    subprocess.run(words, cwd=home, check=True, capture_output=True)
    return x509.load_pem_x509_certificate((home / "cert.pem").read_bytes())


@contextmanager
def serve(home: Path) -> Iterator[Coordinator]:
    (home / "ddml.toml").write_text(read_starter("ddml"))
    files = ("--tls-cert", "cert.pem", "--tls-key", "key.pem")
    with Coordinator(home, "ddml.toml", "--port", "0", *files) as found:
        yield found


@contextmanager
def open_page(certificate: x509.Certificate) -> Iterator[Any]:
    """Yield a page of a Chromium that trusts the key of a certificate, and finds its name here."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="Playwright is not installed: make test installs it."
    )
    if not CHROMIUM.exists():
        pytest.skip(f"There is no {CHROMIUM}: apt install chromium")
    key = certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    digest = base64.b64encode(hashlib.sha256(key).digest()).decode()
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(
            executable_path=str(CHROMIUM),
            args=[
                *("--no-sandbox", "--disable-dev-shm-usage"),
                f"--ignore-certificate-errors-spki-list={digest}",
                f"--host-resolver-rules=MAP {NAME} 127.0.0.1",
            ],
        )
        yield browser.new_page()
        browser.close()


def test_documented_certificate_is_p256_and_python_accepts_it(tmp_path: Path) -> None:
    certificate = make_certificate(tmp_path)
    key = certificate.public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1)
    context = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
    with (
        serve(tmp_path) as coordinator,
        socket.create_connection(("127.0.0.1", coordinator.port), timeout=20) as plain,
        context.wrap_socket(plain, server_hostname=NAME) as secure,
    ):
        assert secure.version() == "TLSv1.3"


def test_chromium_opens_the_dashboard_with_the_documented_certificate(tmp_path: Path) -> None:
    certificate = make_certificate(tmp_path)
    with serve(tmp_path) as coordinator, open_page(certificate) as page:
        response = page.goto(f"https://{NAME}:{coordinator.port}/")
        assert response.status == 200
        assert page.get_by_role("heading", level=1).inner_text() == "Studies"


def test_chromium_refuses_an_ed25519_certificate(tmp_path: Path) -> None:
    """The control of the test above: the former command."""
    certificate = make_certificate(tmp_path, "-newkey", "ed25519")
    with (
        serve(tmp_path) as coordinator,
        open_page(certificate) as page,
        pytest.raises(Exception, match=r"ERR_CONNECTION_CLOSED|ERR_SSL_VERSION_OR_CIPHER_MISMATCH"),
    ):
        page.goto(f"https://{NAME}:{coordinator.port}/")
