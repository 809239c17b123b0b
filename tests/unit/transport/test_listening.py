"""Where a coordinator listens: addresses, certificates, and refusals in sentences."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat, load_pem_private_key

from certificates import Certificates, make_certificates
from shoal.errors import UsageError
from shoal.transport.listening import check_exposure, is_loopback, is_open_to_others, listen, resolve, tls_context, url_for_others, url_of


def test_a_machine_of_its_own_is_loopback_and_no_other() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.8.9.1", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "192.168.1.2", "localhost.example.org", "")))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.2", "a.example.org"])
def test_other_machines_need_tls_or_a_word(host: str) -> None:
    with pytest.raises(UsageError, match="SERVE-001"):
        check_exposure(host, has_tls=False, without_tls=False)
    check_exposure(host, has_tls=True, without_tls=False)
    check_exposure(host, has_tls=False, without_tls=True)
    check_exposure("127.0.0.1", has_tls=False, without_tls=False)


def test_an_address_that_cannot_be_had_is_a_sentence() -> None:
    with listen("127.0.0.1", 0) as taken:
        with pytest.raises(UsageError, match="SERVE-001") as error:
            listen("127.0.0.1", taken.getsockname()[1])
        assert error.value.fix is not None and "--port" in error.value.fix
        assert error.value.what.endswith(": something else does.")
    with pytest.raises(UsageError, match="this machine does not have that address"):
        listen("203.0.113.7", 0)
    for host in ("no such host", "a..b", "a\0b", "x" * 300):
        for asked in (listen, resolve):
            with pytest.raises(UsageError, match=r"SERVE-001  .* is neither an address nor a name"):
                asked(host, 0)
    with pytest.raises(UsageError, match="SERVE-001  --host is empty"):
        resolve("", 0)


def test_a_port_that_is_let_go_in_a_moment_is_waited_for() -> None:
    taken = listen("127.0.0.1", 0)
    port = taken.getsockname()[1]
    timer = threading.Timer(0.2, taken.close)
    timer.start()
    with listen("127.0.0.1", port) as listener:
        assert listener.getsockname()[1] == port
    timer.join()


def test_addresses_as_people_write_them() -> None:
    with listen("localhost", 0) as listener:
        assert url_of("localhost", listener, has_tls=True) == f"https://localhost:{listener.getsockname()[1]}"
    with listen("::1", 0) as listener:
        assert url_of("::1", listener, has_tls=False) == f"http://[::1]:{listener.getsockname()[1]}"


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
def test_participants_are_told_an_address_that_they_can_use(host: str, has_tls: bool, told: str) -> None:
    url = f"{'https' if has_tls else 'http'}://{f'[{host}]' if ':' in host else host}:8700"
    assert url_for_others(host, url, has_tls=has_tls) == told


@pytest.mark.parametrize(("mode", "is_open"), [(0o600, False), (0o640, False), (0o644, True), (0o604, True)])
def test_a_key_that_everyone_can_read_is_seen(mode: int, is_open: bool, tmp_path: Path) -> None:
    (tmp_path / "key.pem").touch()
    (tmp_path / "key.pem").chmod(mode)
    assert is_open_to_others(tmp_path / "key.pem") is is_open


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


def test_certificates_that_do_not_fit_are_sentences(certificates: Certificates, tmp_path: Path) -> None:
    other = make_certificates(tmp_path)
    rubbish = tmp_path / "rubbish.pem"
    rubbish.write_text("rubbish")
    with pytest.raises(UsageError, match="SERVE-002") as error:
        tls_context(certificates.certificate, other.key)
    assert error.value.why == "The key is not the certificate's."
    for certificate, key in ((rubbish, other.key), (other.certificate, rubbish), (tmp_path / "none", other.key), (other.ca, tmp_path)):
        with pytest.raises(UsageError, match="SERVE-002"):
            tls_context(certificate, key)


def test_a_key_with_a_password_asks_nobody(tmp_path: Path) -> None:
    made = make_certificates(tmp_path)
    key = load_pem_private_key(made.key.read_bytes(), None)
    made.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")))
    with pytest.raises(UsageError, match="SERVE-002"):
        tls_context(made.certificate, made.key)
