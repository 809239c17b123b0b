"""What a participant at a command line relies on: one ledger for many studies, bytes that are shown and then sent, and no second thoughts
about a study that changed, or that another coordinator asks."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from certificates import Certificates
from live import write_csv
from participants import document_of, folder
from served import PATIENCE, At, Coordinator, Participant, Process, toml_of
from shoal.coordinator.store.opening import open_store
from shoal.privacy.records import State

__all__ = ["folder"]

ALONE = {"participation": {"minimum": 1, "size": 1}}
IN_COMPANY = {"pfds": {"n_holders": 3}}
"""A holder that comes first waits for the others."""


@pytest.fixture
def someone(folder: Path) -> Participant:
    one = Participant(folder, "someone")
    write_csv(one.data, 1)
    return one


def serve(stack: ExitStack, home: Path, *words: str, tls: Certificates | None = None, **documents: dict[str, Any]) -> Coordinator:
    for name, document in documents.items():
        (home / f"{name}.toml").write_text(toml_of(document))
    return stack.enter_context(Coordinator(home, *(f"{name}.toml" for name in documents), "--port", "0", *words, tls=tls))


def told(stack: ExitStack, process: Process) -> Any:
    stack.callback(process.kill)
    return process.told()


def refusal(stack: ExitStack, process: Process) -> dict[str, Any]:
    """Why a command has failed."""
    stack.callback(process.kill)
    assert process.code() > 0, process.words()
    found: dict[str, Any] = process.said()["error"]
    return found


def wait_for_others(stack: ExitStack, someone: Participant, coordinator: Coordinator, *words: str) -> None:
    """Answer all there is to answer, and go down while the others are waited for."""
    process = someone.join(coordinator, *words)
    stack.callback(process.kill)
    process.heard("is delivered")
    process.kill()


def test_one_ledger_for_two_studies(stack: ExitStack, folder: Path, certificates: Certificates, someone: Participant) -> None:
    devices = {"ddml": {"n_instances": 1, "admission": "signed"}, "privacy": {"epsilon": 1.0}, "participation": {"minimum": 9, "size": 9}}
    one, two = (document_of("ddml", title=title, **devices) for title in ("Monday", "Tuesday"))
    coordinator = serve(stack, folder, tls=certificates, one=one, two=two)
    asked = refusal(stack, someone.join(coordinator))
    assert asked["code"] == "USAGE-001" and "2 studies" in asked["what"]
    for study in coordinator.studies:
        assert told(stack, someone.join(coordinator, "--study", study[:12]))["standing"] == "finished"
    assert len({someone.joined(study).name for study in coordinator.studies}) == 2, "nothing links the names"
    shown = told(stack, someone.start("ledger show"))
    assert [total["epsilon_spent"] for total in shown["totals"]] == [2.0]
    assert [someone.grains(study) for study in coordinator.studies] == [someone.grains() // 2] * 2
    over = refusal(stack, someone.join(coordinator, "--study", coordinator.studies[0], data=folder / "one.toml"))
    assert over["code"] == "USAGE-001" and "one table" in over["why"]


def test_what_is_previewed_is_what_is_sent(stack: ExitStack, folder: Path, someone: Participant) -> None:
    coordinator = serve(stack, folder, "--tickets", study=document_of("anonml", **ALONE))
    study = coordinator.studies[0]
    with tap(coordinator.port) as (port, recorded):
        way = At(f"http://127.0.0.1:{port}")
        drawn = told(stack, someone.join(way, "--preview"))["drawn"]
        previewed = {one["question"]: bytes.fromhex(one["bytes"]) for one in drawn}
        assert previewed and b"".join(recorded).count(b"POST") == 0
        assert {entry.state for entry in someone.entries(study)} == {State.STORED}
        again = told(stack, someone.join(way, "--preview"))["drawn"]
        assert again == drawn
        assert told(stack, someone.join(way))["standing"] == "finished"
    sent, stored = b"".join(recorded), someone.payloads(study)
    assert previewed.items() <= stored.items()
    # What a ledger held before it began is sent when it begins, and may be sent again when it is asked for: the same bytes, counted once.
    times = [sent.count(payload) for payload in stored.values()]
    assert min(times) > 0 and sum(times) == sent.count(b"/submissions HTTP")
    assert someone.grains(study) > 0 and coordinator.model()["counts"] == {"answers": [len(stored)], "late": 0}


def test_leaving(stack: ExitStack, folder: Path, certificates: Certificates, someone: Participant) -> None:
    alone, company = document_of("anonml", **ALONE), document_of("pfds", **IN_COMPANY)
    coordinator = serve(stack, folder, "--tickets", tls=certificates, alone=alone, company=company)
    first, second = coordinator.studies
    assert told(stack, someone.join(coordinator, "--study", first, "--preview"))["drawn"]
    left = told(stack, someone.start("leave", first[:12]))
    assert left["voided"]["questions"] == 1 and left["sent"]["questions"] == 0
    assert {entry.state for entry in someone.entries(first)} == {State.VOIDED}

    wait_for_others(stack, someone, coordinator, "--study", second)
    left = told(stack, someone.start("leave", second[:12], "--ca", certificates.ca))
    assert left["voided"]["questions"] == 0 and left["sent"]["questions"] > 0 and left["coordinator"]["error"] is None
    assert someone.joined(first).standing == someone.joined(second).standing == "left"
    assert someone.spent(second) > 0, "what was sent stays spent"
    assert coordinator.end() == (0, "")
    with open_store(f"sqlite:{folder}/coordinator.db") as store:
        assert [store.totals(study).enrolled for study in (first, second)] == [0, 0]


def test_a_study_that_changed_is_read_again(stack: ExitStack, folder: Path, certificates: Certificates, someone: Participant) -> None:
    first = serve(stack, folder, tls=certificates, study=document_of("pfds", privacy={"epsilon": 1.0}, **IN_COMPANY))
    wait_for_others(stack, someone, first)
    assert first.end() == (0, "")
    spent = someone.spent()

    (folder / "study.toml").write_text(toml_of(document_of("pfds", privacy={"epsilon": 0.5}, **IN_COMPANY)))
    words = ("--port", str(first.port), "--store", "sqlite:coordinator.db")
    second = stack.enter_context(Coordinator(folder, "study.toml", *words, tls=certificates))
    changed = next(study for study in second.studies if study not in first.studies)
    refused = refusal(stack, someone.join(second, "--study", changed))
    assert refused["code"] == "CONSENT-001" and "changed" in refused["what"]
    refused = refusal(stack, someone.join(second, "--study", changed, "--preview"))
    assert refused["code"] == "CONSENT-001" and someone.spent() == spent
    wait_for_others(stack, someone, second, "--study", changed, "--review")
    assert someone.joined(first.studies[0]).standing == "left" and someone.joined(changed).standing == "agreed"


def test_the_same_study_at_two_coordinators(stack: ExitStack, folder: Path, certificates: Certificates, someone: Participant) -> None:
    document = document_of("pfds", **IN_COMPANY)
    one = serve(stack, folder, "--store", "sqlite:one.db", tls=certificates, study=document)
    two = serve(stack, folder, "--store", "sqlite:two.db", tls=certificates, study=document)
    assert one.studies == two.studies
    wait_for_others(stack, someone, one)
    for words in ((), ("--review",), ("--preview",)):
        refused = refusal(stack, someone.join(two, *words))
        assert refused["code"] == "CONSENT-001" and "another coordinator" in refused["what"], words
    assert two.end() == (0, "")
    with open_store(f"sqlite:{folder}/two.db") as store:
        assert (store.totals(two.studies[0]).enrolled, store.totals(two.studies[0]).accepted) == (0, 0)


@contextmanager
def tap(port: int) -> Iterator[tuple[int, list[bytes]]]:
    """A port that leads to another one, and all that was sent there."""
    recorded: list[bytes] = []
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        listener.settimeout(PATIENCE)

        def carry(source: socket.socket, sink: socket.socket, keep: list[bytes]) -> None:
            with suppress(OSError):
                while data := source.recv(1 << 16):
                    keep.append(data)
                    sink.sendall(data)
                sink.shutdown(socket.SHUT_WR)

        def accept() -> None:
            with suppress(OSError):
                while True:
                    here, _ = listener.accept()
                    there = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
                    for one in (here, there):
                        stack.callback(one.close)
                    kept: list[bytes] = []
                    threading.Thread(target=carry, args=(here, there, recorded), daemon=True).start()
                    threading.Thread(target=carry, args=(there, here, kept), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield listener.getsockname()[1], recorded
