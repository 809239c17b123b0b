"""Addresses and certificates of a server, and their errors."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from shoal.errors import UsageError
from shoal.transport.server import (
    check_exposure,
    format_public_url,
    format_url,
    is_loopback,
    is_world_readable,
    load_server_tls_context,
    open_listener,
    resolve_address,
)
from tests.support.tls import Certificates, make_certificates


def test_is_loopback_accepts_only_local_addresses() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.8.9.1", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "192.168.1.2", "localhost.example.org", "")))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.2", "a.example.org"])
def test_check_exposure_requires_tls_or_option(host: str) -> None:
    with pytest.raises(UsageError, match="SERVE-001"):
        check_exposure(host, has_tls=False, without_tls=False)
    check_exposure(host, has_tls=True, without_tls=False)
    check_exposure(host, has_tls=False, without_tls=True)
    check_exposure("127.0.0.1", has_tls=False, without_tls=False)


def test_open_listener_reports_unavailable_address() -> None:
    with open_listener("127.0.0.1", 0) as taken:
        with pytest.raises(UsageError, match="SERVE-001") as error:
            open_listener("127.0.0.1", taken.getsockname()[1])
        assert error.value.fix is not None and "--port" in error.value.fix
        assert error.value.what.endswith(": the address is in use.")
    with pytest.raises(UsageError, match="this machine does not have that address"):
        open_listener("203.0.113.7", 0)
    for host in ("no such host", "a..b", "a\0b", "x" * 300):
        for asked in (open_listener, resolve_address):
            match = r"SERVE-001  .* is neither an address nor a host name"
            with pytest.raises(UsageError, match=match):
                asked(host, 0)
    with pytest.raises(UsageError, match="SERVE-001  --host is empty"):
        resolve_address("", 0)


def test_open_listener_waits_for_port_that_is_released() -> None:
    taken = open_listener("127.0.0.1", 0)
    port = taken.getsockname()[1]
    timer = threading.Timer(0.2, taken.close)
    timer.start()
    with open_listener("127.0.0.1", port) as listener:
        assert listener.getsockname()[1] == port
    timer.join()


def test_format_url_returns_host_and_port() -> None:
    with open_listener("localhost", 0) as listener:
        assert (
            format_url("localhost", listener, has_tls=True)
            == f"https://localhost:{listener.getsockname()[1]}"
        )
    with open_listener("::1", 0) as listener:
        assert (
            format_url("::1", listener, has_tls=False)
            == f"http://[::1]:{listener.getsockname()[1]}"
        )


@pytest.mark.parametrize(
    ("host", "has_tls", "told"),
    [
        ("127.0.0.1", False, "http://127.0.0.1:8700"),
        ("::1", True, "https://[::1]:8700"),
        ("0.0.0.0", True, "https://HOST:8700"),
        ("::", True, "https://HOST:8700"),
        ("a.example.org", True, "https://a.example.org:8700"),
        ("0.0.0.0", False, "https://HOST"),
        ("192.168.1.2", False, "https://HOST"),
    ],
)
def test_format_public_url_returns_reachable_address(host: str, has_tls: bool, told: str) -> None:
    url = f"{'https' if has_tls else 'http'}://{f'[{host}]' if ':' in host else host}:8700"
    assert format_public_url(host, url, has_tls=has_tls) == told


@pytest.mark.parametrize(
    ("mode", "is_open"), [(0o600, False), (0o640, False), (0o644, True), (0o604, True)]
)
def test_is_world_readable_detects_readable_key(mode: int, is_open: bool, tmp_path: Path) -> None:
    (tmp_path / "key.pem").touch()
    (tmp_path / "key.pem").chmod(mode)
    assert is_world_readable(tmp_path / "key.pem") is is_open


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


def test_load_server_tls_context_rejects_mismatched_files(
    certificates: Certificates, tmp_path: Path
) -> None:
    other = make_certificates(tmp_path)
    rubbish = tmp_path / "rubbish.pem"
    rubbish.write_text("rubbish")
    with pytest.raises(UsageError, match="SERVE-002") as error:
        load_server_tls_context(certificates.certificate, other.key)
    assert error.value.why == "The key does not belong to the certificate."
    for certificate, key in (
        (rubbish, other.key),
        (other.certificate, rubbish),
        (tmp_path / "none", other.key),
        (other.ca, tmp_path),
    ):
        with pytest.raises(UsageError, match="SERVE-002"):
            load_server_tls_context(certificate, key)


def test_load_server_tls_context_does_not_prompt_for_password(tmp_path: Path) -> None:
    made = make_certificates(tmp_path)
    key = load_pem_private_key(made.key.read_bytes(), None)
    made.key.write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))
    )
    with pytest.raises(UsageError, match="SERVE-002"):
        load_server_tls_context(made.certificate, made.key)
