"""``shoal join``, ``leave`` and ``ledger`` as real processes.

One ledger serves several studies, a preview shows an example and later the sent bytes, and a study
that changed or comes from another coordinator needs new consent.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from shoal.coordinator.store import open_store
from tests.support.participants import folder, make_document
from tests.support.servers import (
    PATIENCE,
    At,
    Coordinator,
    Participant,
    Process,
    format_toml,
    write_csv,
)
from tests.support.tls import Certificates

__all__ = ["folder"]

ALONE = {"participation": {"minimum": 1, "size": 1}}
IN_COMPANY = {"pfds": {"n_holders": 3}}
"""The first holder waits for the others."""


@pytest.fixture
def someone(folder: Path) -> Participant:
    one = Participant(folder, "someone")
    write_csv(one.data, 1)
    return one


def serve(
    stack: ExitStack,
    home: Path,
    *words: str,
    tls: Certificates | None = None,
    **documents: dict[str, Any],
) -> Coordinator:
    for name, document in documents.items():
        (home / f"{name}.toml").write_text(format_toml(document))
    return stack.enter_context(
        Coordinator(home, *(f"{name}.toml" for name in documents), "--port", "0", *words, tls=tls)
    )


def wait_for_result(stack: ExitStack, process: Process) -> Any:
    stack.callback(process.kill)
    return process.wait_for_result()


def wait_for_error(stack: ExitStack, process: Process) -> dict[str, Any]:
    """Return the error of a command that failed."""
    stack.callback(process.kill)
    assert process.wait() > 0, process.read_output()
    found: dict[str, Any] = process.read_result()["error"]
    return found


def wait_for_others(
    stack: ExitStack, someone: Participant, coordinator: Coordinator, *words: str
) -> None:
    """Answer all questions, and kill the process while it waits for other participants."""
    process = someone.join(coordinator, *words)
    stack.callback(process.kill)
    process.wait_for_output(" delivered")
    process.kill()


def test_join_two_studies_with_one_ledger(
    stack: ExitStack, folder: Path, certificates: Certificates, someone: Participant
) -> None:
    devices = {
        "ddml": {"n_instances": 1, "admission": "signed"},
        "privacy": {"epsilon": 1.0},
        "participation": {"minimum": 9, "size": 9},
    }
    one, two = (make_document("ddml", title=title, **devices) for title in ("Monday", "Tuesday"))
    coordinator = serve(stack, folder, tls=certificates, one=one, two=two)
    asked = wait_for_error(stack, someone.join(coordinator))
    assert asked["code"] == "USAGE-001" and "2 studies" in asked["what"]
    for study in coordinator.studies:
        assert (
            wait_for_result(stack, someone.join(coordinator, "--study", study[:12]))["standing"]
            == "finished"
        )
    assert len({someone.joined(study).name for study in coordinator.studies}) == 2, (
        "nothing links the names"
    )
    shown = wait_for_result(stack, someone.start("ledger show"))
    assert [total["epsilon_spent"] for total in shown["totals"]] == [2.0]
    assert [someone.grains(study) for study in coordinator.studies] == [someone.grains() // 2] * 2
    over = wait_for_error(
        stack,
        someone.join(coordinator, "--study", coordinator.studies[0], data=folder / "one.toml"),
    )
    assert over["code"] == "USAGE-001" and "one table" in over["why"]


def test_preview_shows_example_before_consent_and_sent_bytes_after_it(
    stack: ExitStack, folder: Path, someone: Participant
) -> None:
    coordinator = serve(stack, folder, "--tickets", study=make_document("anonml", **ALONE))
    study = coordinator.studies[0]
    with tap(coordinator.port) as (port, recorded):
        proxy = At(f"http://127.0.0.1:{port}")
        drawn = wait_for_result(stack, someone.join(proxy, "--preview"))["example"]
        again = wait_for_result(stack, someone.join(proxy, "--preview"))["example"]
        assert drawn and again != drawn, "an example is a new draw each time"
        assert b"".join(recorded).count(b"POST") == 0 and not someone.entries(study)
        assert wait_for_result(stack, someone.join(proxy))["standing"] == "finished"
        shown = wait_for_result(stack, someone.join(proxy, "--preview"))["answers"]
    sent, stored = b"".join(recorded), someone.payloads(study)
    assert {one["question"]: bytes.fromhex(one["bytes"]) for one in shown} == stored
    times = [sent.count(payload) for payload in stored.values()]
    assert min(times) > 0 and sum(times) == sent.count(b"/submissions HTTP")
    examples = [bytes.fromhex(one["bytes"]) for one in (*drawn, *again)]
    assert not any(example in sent for example in examples)
    assert someone.grains(study) > 0 and coordinator.model()["counts"] == {
        "answers": [len(stored)],
        "late": 0,
    }


def test_leave_ends_participation(
    stack: ExitStack, folder: Path, certificates: Certificates, someone: Participant
) -> None:
    alone = make_document("anonml", **ALONE)
    company = make_document("pfds", privacy={"epsilon": 1.0}, **IN_COMPANY)
    coordinator = serve(stack, folder, "--tickets", tls=certificates, alone=alone, company=company)
    first, second = coordinator.studies
    assert wait_for_result(stack, someone.join(coordinator, "--study", first))["standing"]
    left = wait_for_result(stack, someone.start("leave", first[:12], "--ca", certificates.ca))
    assert left["voided"]["questions"] == 0 and left["sent"]["questions"] == 1

    wait_for_others(stack, someone, coordinator, "--study", second)
    left = wait_for_result(stack, someone.start("leave", second[:12], "--ca", certificates.ca))
    assert (
        left["voided"]["questions"] == 0
        and left["sent"]["questions"] > 0
        and left["coordinator"]["error"] is None
    )
    assert someone.joined(first).standing == someone.joined(second).standing == "left"
    assert someone.spent(second) > 0, "what was sent stays spent"
    assert coordinator.end() == (0, "")
    with open_store(f"sqlite:{folder}/coordinator.db") as store:
        assert [store.count_totals(study).enrolled for study in (first, second)] == [0, 0]


def test_join_asks_again_if_study_changed(
    stack: ExitStack, folder: Path, certificates: Certificates, someone: Participant
) -> None:
    first = serve(
        stack,
        folder,
        tls=certificates,
        study=make_document("pfds", privacy={"epsilon": 1.0}, **IN_COMPANY),
    )
    wait_for_others(stack, someone, first)
    assert first.end() == (0, "")
    spent = someone.spent()

    (folder / "study.toml").write_text(
        format_toml(make_document("pfds", privacy={"epsilon": 0.5}, **IN_COMPANY))
    )
    words = ("--port", str(first.port), "--store", "sqlite:coordinator.db")
    second = stack.enter_context(Coordinator(folder, "study.toml", *words, tls=certificates))
    changed = next(study for study in second.studies if study not in first.studies)
    refused = wait_for_error(stack, someone.join(second, "--study", changed))
    assert refused["code"] == "CONSENT-001" and "changed" in refused["what"]
    refused = wait_for_error(stack, someone.join(second, "--study", changed, "--preview"))
    assert refused["code"] == "CONSENT-001" and someone.spent() == spent
    wait_for_others(stack, someone, second, "--study", changed, "--review")
    assert (
        someone.joined(first.studies[0]).standing == "left"
        and someone.joined(changed).standing == "agreed"
    )


def test_join_rejects_same_study_at_other_coordinator(
    stack: ExitStack, folder: Path, certificates: Certificates, someone: Participant
) -> None:
    document = make_document("pfds", **IN_COMPANY)
    one = serve(stack, folder, "--store", "sqlite:one.db", tls=certificates, study=document)
    two = serve(stack, folder, "--store", "sqlite:two.db", tls=certificates, study=document)
    assert one.studies == two.studies
    wait_for_others(stack, someone, one)
    for words in ((), ("--review",), ("--preview",)):
        refused = wait_for_error(stack, someone.join(two, *words))
        assert refused["code"] == "CONSENT-001" and "is a different one" in refused["what"], words
    assert two.end() == (0, "")
    with open_store(f"sqlite:{folder}/two.db") as store:
        assert (
            store.count_totals(two.studies[0]).enrolled,
            store.count_totals(two.studies[0]).accepted,
        ) == (0, 0)


@contextmanager
def tap(port: int) -> Iterator[tuple[int, list[bytes]]]:
    """Yield the port of a TCP proxy, and a list of the bytes sent through it."""
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
                    threading.Thread(
                        target=carry, args=(here, there, recorded), daemon=True
                    ).start()
                    threading.Thread(target=carry, args=(there, here, kept), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield listener.getsockname()[1], recorded
