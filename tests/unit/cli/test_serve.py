"""`shoal serve`: rejections before anything is bound or stored; output of each start."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.cli import serve as command
from shoal.cli.main import run
from shoal.coordinator.publishing import hash_key
from shoal.coordinator.store import open_store
from shoal.coordinator.store.base import StudyOutcome
from shoal.crypto.identity import Identity
from shoal.data.schema import as_columns
from shoal.errors import format_install_command
from shoal.study.delivery import has_tokens
from shoal.study.manifest import Manifest
from shoal.study.starters import read_starter
from shoal.study.starters.infer import infer_study
from shoal.transport.server import Server, open_listener
from tests.support.tls import make_certificates

N_DATABASES = 10


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def study(protocol: str, *edits: tuple[str, str]) -> str:
    text = read_starter(protocol)
    for old, new in edits:
        assert old in text
        text = text.replace(old, new, 1)
    Path(f"{protocol}.toml").write_text(text)
    return f"{protocol}.toml"


def roster(n: int = N_DATABASES) -> str:
    keys = [Identity.from_seed(bytes([i] * 32)).public_key.hex() for i in range(n)]
    Path("roster.toml").write_text(
        "".join(f'[[member]]\nname = "site {i}"\nkey = "{key}"\n' for i, key in enumerate(keys))
    )
    return "roster.toml"


def serve(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str
) -> Any:
    """What a coordinator says that is told to end as soon as it listens."""
    show = command.CoordinatorNotice.show

    def show_and_end(notice: command.CoordinatorNotice) -> None:
        show(notice)
        os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(command.CoordinatorNotice, "show", show_and_end)
        # Only the first of these is heard by a service; the one at the end finds the notice shown.
        handler = signal.signal(signal.SIGTERM, signal.SIG_IGN)
        try:
            assert run(["serve", "--port", "0", *arguments]) == 0
        finally:
            signal.signal(signal.SIGTERM, handler)
    printed = capsys.readouterr()
    assert printed.err == ""
    return json.loads(printed.out) if "--json" in arguments else printed.out


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The code of an error that leaves nothing behind."""
    before = set(Path().iterdir())
    assert run(["serve", "--port", "0", *arguments]) > 0
    printed = capsys.readouterr()
    assert printed.out == "" and "Traceback" not in printed.err
    assert set(Path().iterdir()) == before
    return printed.err.split()[0]


def test_serve_prints_analyst_key_once_and_stores_its_digest(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = study("anonml")
    first = serve(capsys, monkeypatch, path, "--json")
    second = serve(capsys, monkeypatch, path, "--json")
    key = first["analyst_key"]
    assert "analyst_key" not in second
    with open_store("sqlite:coordinator.db") as store:
        assert [record.digest for record in store.list_studies()] == [first["studies"][0]["digest"]]
    assert (
        key.replace("-", "").encode() not in (content := Path("coordinator.db").read_bytes())
        and hash_key(key) in content
    )
    assert key.encode() not in content
    assert (first["studies"][0]["is_new"], second["studies"][0]["is_new"]) == (True, False)
    assert first["address"].startswith("http://127.0.0.1:") and not first["address"].endswith(":0")
    assert {path.name for path in Path().iterdir()} == {"anonml.toml", "coordinator.db"}


def test_serve_prints_text_for_people(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    printed = serve(capsys, monkeypatch, study("anonml"), study("ddml"), "--invite", "2")
    assert printed.count("invitation  ") == 4 and "not shown again" in printed
    assert "epsilon 2.0" in printed and "analyst's key" in printed
    assert (
        printed.count("join        shoal join http://127.0.0.1:") == 2
        and printed.count("--invitation CODE") == 2
    )
    later = serve(capsys, monkeypatch)
    assert later.count("   open\n") == 2
    assert "invitation  " not in later and "analyst's key" not in later
    assert "No invitation was made" not in later
    assert "No invitation was made" in serve(capsys, monkeypatch, study("anonml"), "--invite", "2")


def test_serve_prints_timeout_and_outcome_of_studies(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    printed = serve(capsys, monkeypatch, study("ddml"), study("anonml"), "--patience", "5400")
    assert printed.count("ends        ") == 2 and printed.count("or after 1.5 hours, at 20") == 2
    assert "shoal close http://127.0.0.1:" in printed and " STUDY --key-file FILE" in printed
    with open_store("sqlite:coordinator.db") as store:
        done, closed = (record.digest for record in store.list_studies())
        store.end(done, StudyOutcome("done", b"{}"))
        store.end(
            closed, StudyOutcome("failed", reason="DDML-002  Too few.\n  why       Nobody came.")
        )
    later = serve(capsys, monkeypatch)
    assert "ends   " not in later and "join   " not in later
    assert (
        "because     DDML-002 Too few. why Nobody came.\n" in f"{later}\n"
        and f"/v1/studies/{done}/model" in later
    )
    first, second = serve(capsys, monkeypatch, "--json")["studies"]
    assert (first["patience_seconds"], first["ends"], first["join"], second["model"]) == (
        5400.0,
        None,
        None,
        None,
    )


def test_serve_publishes_all_studies_or_none(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = study("ddml", ("[participation]", "[participation]\ncloses = 2020-01-01T00:00:00Z"))
    assert run(["serve", study("anonml"), closed, "--port", "0", "--invite", "1"]) == 3
    printed = capsys.readouterr()
    assert printed.err.startswith("HOST-003  The study closed") and printed.out == ""
    with open_store("sqlite:coordinator.db") as store:
        assert store.list_studies() == ()
    assert serve(capsys, monkeypatch, study("anonml"), "--invite", "1", "--json")["analyst_key"]


def test_serve_accepts_empty_store(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "no studies yet" in serve(capsys, monkeypatch)


def test_serve_makes_invitations_for_new_studies_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = serve(capsys, monkeypatch, study("anonml"), "--invite", "3", "--json")
    ((digest, codes),) = first["invitations"].items()
    assert digest == first["studies"][0]["digest"] and len(set(codes)) == 3
    second = serve(capsys, monkeypatch, study("anonml"), study("ddml"), "--invite", "1", "--json")
    assert [one["status"] for one in second["studies"]] == ["open", "open"] and list(
        second["invitations"]
    ) == [second["studies"][1]["digest"]]
    with open_store("sqlite:coordinator.db") as store:
        assert all(record.by_invitation for record in store.list_studies())


def test_serve_stores_roster_timeout_and_queries(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = study("sdq")
    with Path(path).open("a") as file:
        file.write('[queries]\nfeatures = ["ward"]\nn_queries = 2\nepsilon_release = 1.0\n')
    Path("queries.toml").write_text('[[query]]\nkind = "histogram"\nfeatures = ["ward"]\n')
    told = serve(
        capsys,
        monkeypatch,
        path,
        "--roster",
        roster(),
        "--patience",
        "2.5",
        "--queries",
        "queries.toml",
        "--invite",
        "4",
        "--json",
    )
    with open_store("sqlite:coordinator.db") as store:
        (record,) = store.list_studies()
    assert (record.phase_timeout, record.by_invitation, told["invitations"]) == (2500, False, {})
    assert record.queries and "key" not in told


def test_serve_rejects_unservable_study_and_writes_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert refused(capsys, study("sdq")) == "HOST-003"
    shuffled = (('trust = "local"', 'trust = "shuffled"'), ("[privacy]", "[privacy]\ndelta = 1e-6"))
    assert (
        refused(
            capsys,
            study("anonml", *shuffled, ("[participation]", "[participation]\nhonest_share = 0.9")),
        )
        == "HOST-003"
    )
    assert refused(capsys, "none.toml") == "SPEC-001"
    assert refused(capsys, study("sdq"), "--roster", roster(3)) == "MANIFEST-002"
    assert refused(capsys, study("ddml"), "--roster", roster()) == "SERVE-004"
    assert refused(capsys, study("ddml"), "--roster", "none.toml") == "SERVE-004"
    assert refused(capsys, study("ddml"), "--queries", "roster.toml") == "SDQ-002"


def test_serve_rejects_draft(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = {"age": np.arange(200) % 50, "ill": np.arange(200) % 2}
    text, _ = infer_study(as_columns(columns), "anonml")
    Path("draft.toml").write_text(text)
    assert run(["serve", "draft.toml"]) == 3
    said = capsys.readouterr().err
    assert (
        said.startswith("SERVE-005  draft.toml is still a draft. The values on lines")
        and "write purpose and contact" in said
    )
    text = re.sub(" *# READ FROM THE DATA.*", "", text.replace("[0, 49]", "[0, 120]"))
    Path("draft.toml").write_text(text)
    assert refused(capsys, "draft.toml") == "SERVE-005"
    Path("draft.toml").write_text(re.sub(r'"\(write .*"', '"Ask me."', text))
    assert "Predict ill" in serve(capsys, monkeypatch, "draft.toml", "--tickets")


def test_serve_suggests_port_for_invalid_port(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", "--port", "99999"]) == 2
    assert "fix       --port 8700, or --port 0" in capsys.readouterr().err
    assert run(["serve", "--patience", "0"]) == 2
    assert "fix       --patience 3600" in capsys.readouterr().err


def test_serve_rejects_exposed_host_without_tls(
    capsys: pytest.CaptureFixture[str], home: Path
) -> None:
    made = make_certificates(home)
    path = study("anonml")
    assert refused(capsys, path, "--host", "0.0.0.0") == "SERVE-001"
    assert (
        refused(capsys, path, "--host", "0.0.0.0", "--tls-cert", str(made.certificate))
        == "SERVE-002"
    )
    assert (
        refused(capsys, path, "--tls-cert", str(made.ca), "--tls-key", str(made.key)) == "SERVE-002"
    )
    assert refused(capsys, path, "--host", "203.0.113.9", "--without-tls") == "SERVE-001"
    assert refused(capsys, path, "--host", "") == "SERVE-001"
    assert run(["serve", path, "--host", "no.such.host.invalid"]) == 2
    assert "neither an address nor a host name" in capsys.readouterr().err


def test_serve_warns_about_world_readable_key(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    made = make_certificates(home)
    files = ("--tls-cert", str(made.certificate), "--tls-key", str(made.key), "--host", "0.0.0.0")
    printed = serve(capsys, monkeypatch, study("anonml"), *files)
    assert (
        "listens     https://0.0.0.0:" in printed
        and "join        shoal join https://HOST:" in printed
    )
    assert "dashboard   https://HOST:" in printed
    made.key.chmod(0o644)
    with open_listener("127.0.0.1", 0) as taken:
        assert run(["serve", *files[:4], "--port", str(taken.getsockname()[1])]) == 2
    warned = capsys.readouterr().err
    assert (
        warned.startswith("warning     Every user of this machine can read the key ")
        and "chmod o-r" in warned
    )
    assert "SERVE-001  Cannot listen on 127.0.0.1" in warned


def test_serve_accepts_exposed_host_with_without_tls(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "http://0.0.0.0:" in serve(
        capsys, monkeypatch, study("anonml"), "--host", "0.0.0.0", "--without-tls"
    )


@pytest.mark.parametrize(
    "options",
    [
        ["--workers", "0"],
        ["--port", "70000"],
        ["--invite", "-1"],
        ["--patience", "0"],
        ["--patience", "nan"],
        ["--workers", "2", "--models", "memory:"],
        ["--store", "oracle:x"],
        ["--models", "etcd://x"],
        ["--models", "redis://127.0.0.1:1/models"],
    ],
)
def test_serve_rejects_invalid_options(
    options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["serve", study("anonml"), "--port", "0", *options]) == 2
    assert capsys.readouterr().err.startswith("USAGE-001")
    assert {path.name for path in Path().iterdir()} == {"anonml.toml"}


@pytest.mark.parametrize(
    "options",
    [
        ["--models", "redis://:hidden@127.0.0.1:1/0"],
        ["--store", "postgresql://u:hidden@127.0.0.1:1/db"],
    ],
)
def test_serve_reports_unreachable_database(
    options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    path = study("anonml")
    assert run(["serve", path, "--port", "0", *options]) == 1
    error = capsys.readouterr().err
    assert (
        error.startswith("STORE-001  ")
        and "no server answers at this address" in error
        and "hidden" not in error
    )
    assert {path.name for path in Path().iterdir()} == {"anonml.toml"}


def test_serve_prints_new_key_after_failure(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class BrokenServer(Server):
        async def startup(self, sockets: object = None) -> None:
            raise RuntimeError

    monkeypatch.setattr("shoal.coordinator.worker.Server", BrokenServer)
    with pytest.raises(RuntimeError):
        run(["serve", study("anonml"), "--port", "0", "--json"])
    assert json.loads(capsys.readouterr().out)["analyst_key"]


def test_serve_reports_missing_extra(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert refused(capsys, study("anonml")) == "USAGE-002"


def manifests() -> list[Manifest]:
    with open_store("sqlite:coordinator.db") as store:
        return [Manifest.from_bytes(record.manifest) for record in store.list_studies()]


def test_serve_keeps_token_keys_after_restart(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = study("anonml"), study("ddml", ("[ddml]", '[ddml]\nadmission = "token"'))
    options = ("--epoch", "spring 2030", "--relay", "https://relay.example.org")
    first = serve(capsys, monkeypatch, *paths, *options, "--json")
    assert [one["has_tokens"] for one in first["studies"]] == [True, True] and len(manifests()) == 2
    for manifest in manifests():
        assert manifest.issuer_key and manifest.gateway_key and has_tokens(manifest)
        assert (manifest.epoch, manifest.relay) == ("spring 2030", "https://relay.example.org")
    assert len({manifest.issuer_key for manifest in manifests()}) == 1
    later = serve(capsys, monkeypatch, *paths, *options)
    assert later.count("   open\n") == 2 and len(manifests()) == 2
    assert (
        later.count("epoch       spring 2030")
        == later.count("relay       https://relay.example.org")
        == 2
    )
    # Without the epoch it is another study: others are its members.
    alone = serve(capsys, monkeypatch, paths[0], "--json")["studies"][2]
    assert (alone["is_new"], alone["epoch"], alone["relay"]) == (True, None, None)


def test_serve_creates_different_keys_for_each_coordinator(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    digests = {
        serve(capsys, monkeypatch, study("anonml"), "--store", f"sqlite:{i}.db", "--json")[
            "studies"
        ][0]["digest"]
        for i in range(2)
    }
    assert len(digests) == 2


def test_serve_admits_by_tickets_with_option(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    told = serve(
        capsys,
        monkeypatch,
        study("anonml"),
        study("sdq"),
        "--roster",
        roster(),
        "--tickets",
        "--json",
    )
    assert [one["has_tokens"] for one in told["studies"]] == [False, False]
    assert all(
        manifest.issuer_key is None and manifest.gateway_key is None for manifest in manifests()
    )


def test_serve_adds_no_keys_to_study_without_tokens(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(capsys, monkeypatch, study("pfds"))
    assert [(manifest.issuer_key, manifest.gateway_key) for manifest in manifests()] == [
        (None, None)
    ]


def test_serve_adds_relay_to_shuffled_study(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shuffled = (('trust = "local"', 'trust = "shuffled"'), ("[privacy]", "[privacy]\ndelta = 1e-6"))
    path = study("anonml", *shuffled, ("[participation]", "[participation]\nhonest_share = 0.9"))
    told = serve(capsys, monkeypatch, path, "--relay", "https://relay.example.org", "--json")
    assert told["studies"][0]["label"]["trust"] == "shuffled"


def test_serve_rejects_token_options_without_effect(capsys: pytest.CaptureFixture[str]) -> None:
    for options in (
        ["--epoch", "e", "--tickets"],
        ["--relay", "https://a.example.org", "--tickets"],
    ):
        assert refused(capsys, study("anonml"), *options) == "USAGE-001"
    assert (
        refused(capsys, study("pfds"), "--epoch", "e")
        == refused(capsys, "--epoch", "e")
        == "USAGE-001"
    )
    assert refused(capsys, study("anonml"), "--epoch", "two\nlines") == "MANIFEST-002"
    assert refused(capsys, study("anonml"), "--relay", "ftp://x") == "MANIFEST-002"


def test_serve_rejects_epoch_with_mixed_admission(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = study("ddml", ("[ddml]", '[ddml]\nadmission = "token"'))
    first = serve(capsys, monkeypatch, study("anonml"), other, "--epoch", "e", "--invite", "2")
    # One code for a person, in however many studies.
    assert (
        first.count("\ninvitation  ") == 3 and first.count("the codes of its epoch are valid") == 1
    )
    assert "An invitation is valid in all studies of its epoch" in first
    third = study("pfds")
    Path(third).write_text(
        Path(study("anonml")).read_text().replace("title = ", 'title = "A third" # ')
    )
    later = serve(capsys, monkeypatch, third, "--epoch", "e")
    assert (
        later.count("the codes of its epoch are valid") == 1 and later.count("\ninvitation  ") == 1
    )
    serve(capsys, monkeypatch, study("anonml"), "--epoch", "f")
    assert run(["serve", other, "--port", "0", "--epoch", "f", "--invite", "1"]) == 3
    assert capsys.readouterr().err.startswith(
        "HOST-003  The study is by invitation, but other studies of its epoch are open to all."
    )


def test_serve_reports_missing_extra_for_tokens(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec",
        lambda name, *more: None if name == "pyblst" else find(name, *more),
    )
    path = study("anonml")
    assert run(["serve", path, "--port", "0"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("USAGE-002") and format_install_command("anonymous") in error
    assert not serve(capsys, monkeypatch, path, "--tickets", "--json")["studies"][0]["has_tokens"]
