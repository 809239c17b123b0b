"""``shoal join`` against a real coordinator: output, refusals and results."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import pty
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from shoal.cli.join import join, view
from shoal.cli.leave import leave
from shoal.clock import ManualClock, SystemClock
from shoal.coordinator.store.base import StudyOutcome
from shoal.crypto.identity import Identity
from shoal.entropy import SystemEntropy
from shoal.errors import (
    BudgetError,
    ConsentError,
    RemoteProtocolError,
    ShoalError,
    SpecError,
    StoreError,
    TransportError,
    UsageError,
)
from shoal.participant.journal import Journal
from shoal.participant.keys import load_master_identity
from shoal.participant.ledger_file import LedgerFile
from shoal.participant.session import open_session
from shoal.privacy.ledger.records import ReleaseState
from shoal.study.manifest import Manifest
from tests.support.machines import Front, Server, standing
from tests.support.participants import folder, make_manifest, store_answer
from tests.support.servers import Live, live, write_csv

__all__ = ["folder"]

ANONML = make_manifest("anonml", 3)
DDML = make_manifest(
    "ddml",
    3,
    ddml={"n_instances": 2, "admission": "token"},
    privacy={"epsilon": 4.0, "n_updates": 2},
)
PFDS = make_manifest("pfds", 3, pfds={"n_holders": 3})


@pytest.fixture
def coordinator(folder: Path) -> Iterator[Live]:
    with live(folder, ANONML, DDML, PFDS) as found:
        yield found


@pytest.fixture
def call(
    folder: Path, coordinator: Live, capsys: pytest.CaptureFixture[str]
) -> Callable[..., dict[str, Any]]:
    """Run ``shoal join --json`` with a separate ledger, and return the object that it prints."""

    def called(manifest: Any, *, ledger: str = "me.db", **options: Any) -> dict[str, Any]:
        join(
            coordinator.url,
            study=manifest.digest.hex()[:12],
            ledger=folder / ledger,
            json=True,
            **{"new_ledger": True, **options},
        )
        told: dict[str, Any] = json.loads(capsys.readouterr().out)
        return told

    return called


async def agree(path: Path, url: str, study: str, data: str) -> None:
    """Agree to a study, and stop before anything else."""
    async with open_session(path, url, SystemClock(), SystemEntropy()) as session:
        session.agree(await session.fetch_offer(study), data)


def entries(path: Path) -> dict[str, tuple[ReleaseState, bytes | None]]:
    with LedgerFile(path, SystemClock()) as book:
        return {entry.release.question: (entry.state, entry.digest) for entry in book.entries()}


def test_join_again_sends_nothing_twice(
    call: Callable[..., dict[str, Any]], folder: Path, coordinator: Live
) -> None:
    data = str(write_csv(folder / "rows.csv", 5))
    told = call(DDML, data=data, yes=True, max_epsilon="4")
    assert (
        told["standing"] == "finished"
        and told["sent"]["questions"] == 2
        and told["sent"]["epsilon"] == 4.0
    )
    assert told["label"]["digest"] == DDML.short_digest and [
        one["url"] for one in told["agreed"]
    ] == [coordinator.url]
    assert (
        told["ledger"]["totals"][0]["epsilon_spent"] == 4.0
        and told["study"] == DDML.digest.hex()
        and told["out"] is None
    )
    assert {state for state, _ in entries(folder / "me.db").values()} == {ReleaseState.SENT}
    before = entries(folder / "me.db")
    # The source is remembered, and what was agreed to is not asked again.
    assert call(DDML)["sent"] == told["sent"] and entries(folder / "me.db") == before
    with pytest.raises(UsageError, match="not with"):
        call(DDML, data=str(write_csv(folder / "others.csv", 5)))
    assert coordinator.totals(DDML).enrolled == 1


@pytest.mark.parametrize(
    ("options", "error", "code"),
    [
        ({}, ConsentError, "CONSENT-001"),
        ({"max_epsilon": "4"}, ConsentError, "CONSENT-001"),
        ({"yes": True}, UsageError, "USAGE-001"),
        ({"yes": True, "max_epsilon": "3.99"}, ConsentError, "CONSENT-001"),
        ({"yes": True, "max_epsilon": "nan"}, UsageError, "USAGE-001"),
        ({"yes": True, "max_epsilon": "0"}, UsageError, "USAGE-001"),
        ({"yes": True, "max_epsilon": "4", "via": "pigeon"}, UsageError, "USAGE-001"),
        ({"yes": True, "max_epsilon": "4", "data": None}, UsageError, "USAGE-001"),
    ],
)
def test_join_without_consent_sends_nothing(
    options: dict[str, Any],
    error: type[ShoalError],
    code: str,
    call: Callable[..., dict[str, Any]],
    folder: Path,
    coordinator: Live,
) -> None:
    data = str(write_csv(folder / "rows.csv", 5))
    with pytest.raises(error) as refused:
        call(DDML, **{"data": data, **options})
    assert refused.value.code == code
    assert coordinator.totals(DDML).enrolled == 0
    assert not (folder / "me.db").exists() or not entries(folder / "me.db")


def test_join_rejects_table_without_rows(
    call: Callable[..., dict[str, Any]], folder: Path, coordinator: Live
) -> None:
    with pytest.raises(UsageError, match="has no rows"):
        call(DDML, data=str(write_csv(folder / "none.csv", 0)), yes=True, max_epsilon="4")
    assert coordinator.totals(DDML).enrolled == 0


def test_join_without_terminal_prints_label_and_command(
    folder: Path, coordinator: Live, capsys: pytest.CaptureFixture[str]
) -> None:
    data = str(write_csv(folder / "rows.csv", 5))
    with pytest.raises(ConsentError) as refused:
        join(
            coordinator.url,
            study=DDML.short_digest,
            ledger=folder / "me.db",
            new_ledger=True,
            data=data,
        )
    assert "PRIVACY LABEL" in capsys.readouterr().out
    assert (
        refused.value.fix
        == f"Read the label. If you agree: --study {DDML.digest.hex()[:12]} --yes --max-epsilon 4.0"
    )


def test_join_over_own_limit_is_refused(
    call: Callable[..., dict[str, Any]], folder: Path, coordinator: Live
) -> None:
    data = str(write_csv(folder / "rows.csv", 5))
    call(DDML, data=data, yes=True, max_epsilon="9")
    other = make_manifest(
        "ddml",
        3,
        title="Another",
        ddml={"n_instances": 2},
        privacy={"epsilon": 1.0, "n_updates": 2},
    )
    coordinator.publish(other)
    with pytest.raises(BudgetError) as refused:
        call(other, data=data, yes=True, max_epsilon="9")
    assert refused.value.code == "BUDGET-002"


def test_join_rejects_data_outside_schema(
    call: Callable[..., dict[str, Any]], folder: Path, coordinator: Live
) -> None:
    (folder / "rows.csv").write_text("wind,play\nweak,yes\n")
    with pytest.raises(SpecError, match="heat"):
        call(DDML, data=str(folder / "rows.csv"), yes=True, max_epsilon="4")
    assert coordinator.totals(DDML).enrolled == 0


def test_join_lists_several_studies(folder: Path, coordinator: Live) -> None:
    with pytest.raises(UsageError, match="offers 3 studies") as refused:
        join(coordinator.url, ledger=folder / "me.db", new_ledger=True, data="x.csv")
    assert all(manifest.short_digest in str(refused.value) for manifest in (ANONML, DDML, PFDS))


def test_join_with_yes_requires_name_of_new_study(
    call: Callable[..., dict[str, Any]], folder: Path, coordinator: Live
) -> None:
    data = str(write_csv(folder / "rows.csv", 5))
    call(DDML, data=data, yes=True, max_epsilon="4")
    other = make_manifest(
        "ddml", 3, title="Another", ddml={"n_instances": 2}, privacy={"epsilon": 0.1}
    )
    coordinator.publish(other)
    vague = other.digest.hex()[:8]
    with pytest.raises(ConsentError, match="that is new to you: Another"):
        join(
            coordinator.url,
            study=vague,
            ledger=folder / "me.db",
            data=data,
            yes=True,
            max_epsilon="4",
            json=True,
        )
    assert coordinator.totals(other).enrolled == 0


def test_join_checks_max_epsilon_when_it_resumes(
    call: Callable[..., dict[str, Any]], folder: Path, coordinator: Live
) -> None:
    data = str(write_csv(folder / "rows.csv", 5))
    asyncio.run(agree(folder / "me.db", coordinator.url, DDML.short_digest, data))
    with pytest.raises(ConsentError, match=r"costs epsilon 4\.0, delta 0 \(update, replace, "):
        call(DDML, max_epsilon="3.99")
    assert coordinator.totals(DDML).enrolled == 0 and not entries(folder / "me.db")
    assert call(DDML, max_epsilon="4")["standing"] == "finished"


def test_join_accepts_invitation_given_later(
    call: Callable[..., dict[str, Any]], folder: Path, coordinator: Live
) -> None:
    data = str(write_csv(folder / "rows.csv", 5))
    settings = {"n_instances": 2, "admission": "signed"}
    invited = make_manifest(
        "ddml", 3, title="By invitation", ddml=settings, privacy={"epsilon": 1.0}
    )
    coordinator.publish(invited, invitations=["0123-4567"])
    for options in ({"data": data, "yes": True, "max_epsilon": "4"}, {}, {"invitation": "another"}):
        with pytest.raises(RemoteProtocolError, match="ENROL-001") as refused:
            call(invited, **options)
        assert refused.value.exit_code == ConsentError.exit_code
    assert coordinator.totals(invited).enrolled == 0 and not entries(folder / "me.db")
    assert call(invited, invitation="0123-4567")["standing"] == "finished"


def test_join_after_leave_resumes(
    call: Callable[..., dict[str, Any]],
    folder: Path,
    coordinator: Live,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = str(write_csv(folder / "rows.csv", 5))
    asyncio.run(agree(folder / "me.db", coordinator.url, DDML.short_digest, data))
    for n in (0, 2):
        leave(DDML.short_digest, ledger=folder / "me.db", json=True)
        capsys.readouterr()
        told = call(DDML, yes=True, max_epsilon="4")
        assert told["standing"] == "finished" and told["sent"]["questions"] == 2
        assert len(told["agreed"]) == 2 + (n > 0)


def test_join_after_voided_answer_is_refused_before_enrolment(
    call: Callable[..., dict[str, Any]],
    folder: Path,
    coordinator: Live,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = str(write_csv(folder / "row.csv", 1))
    asyncio.run(agree(folder / "me.db", coordinator.url, ANONML.short_digest, data))
    store_answer(folder / "me.db", SystemClock(), ANONML, "answer")
    leave(ANONML.short_digest, ledger=folder / "me.db", json=True)
    capsys.readouterr()
    for options in ({"yes": True, "max_epsilon": "4"}, {"preview": True}):
        with pytest.raises(BudgetError, match="You gave up 1 drawn answer") as refused:
            call(ANONML, **options)
        assert refused.value.code == "BUDGET-005"
    assert coordinator.totals(ANONML).enrolled == 0


def roster_with_me(folder: Path) -> Manifest:
    """Return a study of holders, one of whom has the ledger me.db."""
    with Journal(folder / "me.db", SystemClock()) as journal:
        mine = load_master_identity(journal, SystemEntropy()).public_key
    others = tuple(Identity.from_seed(bytes([i]) * 32).public_key for i in range(2))
    return make_manifest("pfds", 3, (mine, *others), title="Among us", pfds={"n_holders": 3})


def test_join_counts_rows_outside_ranges_for_owner_and_sends_no_count(
    folder: Path, coordinator: Live, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder / "rows.csv"
    path.write_text("wind,heat,play\nweak,99,no\nweak,10,maybe\nstrong,10,yes\n")
    server = Server(Front(coordinator.url).reply)
    with standing(server) as port:
        join(
            f"http://127.0.0.1:{port}",
            study=DDML.short_digest,
            ledger=folder / "me.db",
            new_ledger=True,
            data=str(path),
            yes=True,
            max_epsilon="4",
            json=True,
        )
    printed = capsys.readouterr()
    assert json.loads(printed.out)["standing"] == "finished"
    assert "counted as missing: heat 1.\n1 row left out (play 1).\n" in printed.err
    sent = b"".join(one.body + one.path.encode() for one in server.heard)
    assert b"left out" not in sent and b"missing" not in sent


def test_join_read_only_shares_nothing(
    call: Callable[..., dict[str, Any]], folder: Path, coordinator: Live
) -> None:
    manifest, data = roster_with_me(folder), str(write_csv(folder / "rows.csv", 9))
    coordinator.publish(manifest)
    told = call(manifest, data=data, preview=True)
    assert told["example"] and [member["name"] for member in told["roster"]] == [
        "site-0",
        "site-1",
        "site-2",
    ]
    store_answer(folder / "me.db", SystemClock(), manifest, "tables")
    with pytest.raises(ConsentError, match=r"stored answers .* from an earlier --preview"):
        call(manifest, read_only=True)
    asyncio.run(agree(folder / "me.db", coordinator.url, manifest.short_digest, data))
    with pytest.raises(ConsentError, match="you agreed to share data"):
        call(manifest, read_only=True)
    with pytest.raises(UsageError, match="--preview"):
        call(manifest, read_only=True, preview=True)
    assert {state for state, _ in entries(folder / "me.db").values()} == {ReleaseState.STORED}
    assert coordinator.totals(manifest).enrolled == 0 and coordinator.totals(manifest).accepted == 0


def test_join_writes_no_model_of_closed_study(
    folder: Path, coordinator: Live, capsys: pytest.CaptureFixture[str]
) -> None:
    data, ledger = str(write_csv(folder / "row.csv", 1)), folder / "me.db"
    asyncio.run(agree(ledger, coordinator.url, ANONML.short_digest, data))
    join(coordinator.url, study=ANONML.short_digest, ledger=ledger, json=True)
    coordinator.store.end(
        ANONML.digest.hex(), StudyOutcome("closed", reason="The analyst has closed the study.")
    )
    capsys.readouterr()
    join(coordinator.url, study=ANONML.short_digest, ledger=ledger, out=folder / "out")
    printed = capsys.readouterr().out
    assert "wrote     nothing: there is no model" in printed and "status    finished" in printed
    assert printed.endswith(f"next      shoal ledger show --ledger {ledger}\n") and not list(
        (folder / "out").iterdir()
    )


def test_join_raises_net_001_for_unreachable_coordinator(folder: Path) -> None:
    with pytest.raises(TransportError) as refused:
        join("http://127.0.0.1:9", ledger=folder / "me.db", new_ledger=True, data="x.csv")
    assert refused.value.code == "NET-001"


@pytest.mark.parametrize("manifest", [ANONML, DDML, PFDS])
def test_preview_before_consent_is_fresh_example(
    manifest: Any, call: Callable[..., dict[str, Any]], folder: Path, coordinator: Live
) -> None:
    """The example is another draw than the answer: nobody can decline because of the answer."""
    data = str(write_csv(folder / "row.csv", 1))
    told = call(manifest, data=data, preview=True)
    assert len(told["example"]) == 1 and told["label"]["digest"] == manifest.short_digest
    assert json.loads(told["example"][0]["message"])["study"] == manifest.digest.hex()
    assert "answers" not in told and told["waiting"] == 0
    assert call(manifest, data=data, preview=True)["example"] != told["example"]
    assert not entries(folder / "me.db")
    with Journal(folder / "me.db", SystemClock()) as journal:
        assert journal.list_studies() == ()
    assert coordinator.totals(manifest).enrolled == 0 and coordinator.totals(manifest).accepted == 0
    with pytest.raises(ConsentError):
        call(manifest, data=data)


@pytest.mark.parametrize("manifest", [ANONML, DDML])
def test_preview_after_consent_shows_bytes_after_they_arrived(
    manifest: Any, call: Callable[..., dict[str, Any]], folder: Path, coordinator: Live
) -> None:
    data, path = str(write_csv(folder / "row.csv", 1)), folder / "me.db"
    asyncio.run(agree(path, coordinator.url, manifest.short_digest, data))
    before = call(manifest, preview=True)
    assert before["answers"] == [] and "example" not in before
    call(manifest)
    told = call(manifest, preview=True)
    digests = {
        one["question"]: hashlib.sha256(bytes.fromhex(one["bytes"])).digest()
        for one in told["answers"]
    }
    assert digests == {question: digest for question, (_, digest) in entries(path).items()}
    assert digests and told["waiting"] == 0


def test_preview_does_not_show_stored_answer_that_has_not_arrived(
    folder: Path, coordinator: Live, capsys: pytest.CaptureFixture[str]
) -> None:
    """Somebody who saw the answer here could leave, and send only answers that it likes."""
    data, path = str(write_csv(folder / "row.csv", 1)), folder / "me.db"
    asyncio.run(agree(path, coordinator.url, ANONML.short_digest, data))
    store_answer(path, SystemClock(), ANONML, "answer")
    for is_sending in (False, True):
        with LedgerFile(path, SystemClock()) as ledger:
            if is_sending:
                ledger.mark_sending(ANONML.digest.hex(), "answer")
        for as_json in (False, True):
            capsys.readouterr()
            join(
                coordinator.url,
                study=ANONML.short_digest,
                ledger=path,
                preview=True,
                json=as_json,
            )
            printed = capsys.readouterr().out
            assert b"drawn and not sent".hex() not in printed
            assert ('"waiting": 1' if as_json else "1 answer not sent yet") in printed


def test_preview_of_devices_requests_no_model_and_says_so(
    folder: Path, coordinator: Live, capsys: pytest.CaptureFixture[str]
) -> None:
    server = Server(Front(coordinator.url).reply)
    data = str(write_csv(folder / "row.csv", 1))
    with standing(server) as port:
        url = f"http://127.0.0.1:{port}"
        join(
            url,
            study=DDML.short_digest,
            ledger=folder / "me.db",
            new_ledger=True,
            data=data,
            preview=True,
        )
    assert {one.path.rpartition("/")[2] for one in server.heard} == {"studies", "manifest"}
    assert "No model was requested from the coordinator for it." in capsys.readouterr().out


def test_preview_without_example_gives_reason(
    folder: Path, coordinator: Live, capsys: pytest.CaptureFixture[str]
) -> None:
    with Journal(folder / "me.db", SystemClock()) as journal:
        mine = load_master_identity(journal, SystemEntropy()).public_key
    others = tuple(Identity.from_seed(bytes([i]) * 32).public_key for i in range(2))
    manifest = make_manifest("sdq", 3, (mine, *others), sdq={"n_databases": 3})
    coordinator.publish(manifest)
    data = str(write_csv(folder / "rows.csv", 9))
    join(
        coordinator.url,
        study=manifest.short_digest,
        ledger=folder / "me.db",
        data=data,
        preview=True,
    )
    assert "masked together with those of the other databases" in capsys.readouterr().out


def test_join_rejects_changed_study(
    call: Callable[..., dict[str, Any]], folder: Path, coordinator: Live
) -> None:
    data = str(write_csv(folder / "rows.csv", 9))
    changed = make_manifest("pfds", 3, pfds={"n_holders": 3}, purpose="Another purpose.")
    coordinator.publish(changed)
    asyncio.run(agree(folder / "me.db", coordinator.url, PFDS.short_digest, data))
    with pytest.raises(ConsentError, match="changed since you agreed") as refused:
        call(changed, data=data, yes=True, max_epsilon="4")
    assert (
        refused.value.fix
        == f"Read it again: shoal join {coordinator.url} --study {changed.digest.hex()[:12]} "
        "--review"
    )
    assert coordinator.totals(changed).enrolled == 0
    with pytest.raises(ConsentError, match="--yes --max-epsilon"):
        call(changed, data=data, review=True)


def test_join_without_terminal_needs_new_ledger(
    call: Callable[..., dict[str, Any]],
    folder: Path,
    coordinator: Live,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = str(write_csv(folder / "rows.csv", 5))
    consent = {"data": data, "yes": True, "max_epsilon": "4"}
    with pytest.raises(StoreError, match="LEDGER-010") as refused:
        call(DDML, **consent, new_ledger=False)
    assert "--new-ledger" in (refused.value.fix or "")
    assert not (folder / "me.db").exists() and coordinator.totals(DDML).enrolled == 0
    call(DDML, **consent)
    assert call(DDML, new_ledger=False)["standing"] == "finished", "the ledger exists"


def test_join_refuses_clock_far_ahead_of_ledger(
    call: Callable[..., dict[str, Any]], folder: Path, coordinator: Live
) -> None:
    data = str(write_csv(folder / "rows.csv", 5))
    consent = {"data": data, "yes": True, "max_epsilon": "4"}
    past = ManualClock(datetime.now(UTC) - timedelta(days=31))
    with LedgerFile(folder / "me.db", past):
        pass
    with pytest.raises(StoreError, match="LEDGER-012"):
        call(DDML, **consent)
    assert not entries(folder / "me.db") and coordinator.totals(DDML).enrolled == 0
    with pytest.raises(UsageError, match="is not the date of your clock"):
        call(DDML, **consent, date="2001-01-01")
    assert call(DDML, **consent, date=f"{datetime.now(UTC):%Y-%m-%d}")["standing"] == "finished"


class Terminal:
    """A terminal with a person who gives prepared answers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: str) -> None:
        self.answers = list(answers)
        for stream in (sys.stdin, sys.stdout):
            monkeypatch.setattr(stream, "isatty", lambda: True)
        monkeypatch.setattr("builtins.input", self.answer)
        monkeypatch.setattr(view.ask_for_consent, "__defaults__", (self.answer,))

    def answer(self, question: str) -> str:
        assert question == view.PROMPT
        if not self.answers:
            raise EOFError
        return self.answers.pop(0)


@pytest.mark.parametrize("answers", [("n",), ("",), ("what?",), (), ("d", "N"), ("p", "n")])
def test_join_without_yes_is_declined(
    answers: tuple[str, ...], folder: Path, coordinator: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = str(write_csv(folder / "row.csv", 1))
    Terminal(monkeypatch, *answers)
    with pytest.raises(ConsentError, match="You have not agreed"):
        join(coordinator.url, study=ANONML.short_digest, ledger=folder / "me.db", data=data)
    assert coordinator.totals(ANONML).enrolled == 0
    assert not entries(folder / "me.db"), "a person who declines has seen an example only"


def test_join_shows_details_and_preview_before_consent(
    folder: Path,
    coordinator: Live,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = str(write_csv(folder / "row.csv", 1))
    terminal = Terminal(monkeypatch, "d", "p", "y")
    join(coordinator.url, study=ANONML.short_digest, ledger=folder / "me.db", data=data)
    printed = capsys.readouterr().out
    assert not terminal.answers and "PRIVACY LABEL" in printed and ANONML.digest.hex() in printed
    assert (
        "EXAMPLE. These bytes were drawn for this preview." in printed
        and "status    finished: all questions answered" in printed
    )
    assert "sent      1 answer, " in printed and "agreed    20" in printed
    words = f"--data {data} --study {ANONML.short_digest} --ledger {folder / 'me.db'} --out results"
    assert printed.endswith(f"next      shoal join {coordinator.url} {words}\n")


def read_until(terminal: int, words: str) -> str:
    """Return the output of a process on its terminal, up to some words."""
    seen = b""
    while words.encode() not in seen:
        try:
            part = os.read(terminal, 1 << 16)
        except OSError:  # nobody is at the other end any more
            part = b""
        assert part, seen.decode(errors="replace")
        seen += part
    return seen.decode(errors="replace")


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_at_prompt_ends_join_with_error(
    by: signal.Signals, folder: Path, coordinator: Live
) -> None:
    """A real process on a real terminal ends at the first Ctrl-C, although an event loop runs."""
    data = str(write_csv(folder / "row.csv", 1))
    command = [
        "join",
        coordinator.url,
        "--study",
        ANONML.short_digest,
        "--data",
        data,
        "--ledger",
        str(folder / "me.db"),
    ]
    here, there = pty.openpty()
    try:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        process = subprocess.Popen(
            [sys.executable, "-m", "shoal", *command],
            env=environment,
            stdin=there,
            stdout=there,
            stderr=there,
        )
        os.close(there)
        read_until(here, view.PROMPT.strip())
        # A question is shown a moment before its answer is waited for, and what comes in between is
        # heard with the answer.
        while Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "S":
            select.select([], [], [], 0.01)
        process.send_signal(by)
        said = read_until(here, "join, leave and serve resume")
        assert "Interrupted" in said and "Traceback" not in said
        assert process.wait(60) == 128 + by
    finally:
        os.close(here)
        process.kill()
        process.wait()
    assert coordinator.totals(ANONML).enrolled == 0 and not entries(folder / "me.db")
