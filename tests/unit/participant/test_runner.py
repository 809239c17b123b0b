"""The driver over HTTP: all studies with losses and crashes, one draw per question."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest

from shoal.crypto.identity import Identity
from shoal.entropy import SeededEntropy, SystemEntropy
from shoal.errors import BudgetError, ConsentError, LocalProtocolError, StoreError
from shoal.messages.codec import decode
from shoal.mpyc.runner import MPyCWorkers
from shoal.participant.client import RefusedError
from shoal.participant.journal import Journal
from shoal.participant.ledger_file import LedgerFile
from shoal.participant.offers import Offer, record_consent
from shoal.protocols.pfds.personal_model import PersonalModel
from shoal.study.handle import StudyHandle
from shoal.study.manifest import Manifest
from shoal.study.plan import make_plan
from shoal.transport.api import MessagePage
from tests.support.participants import (
    COORDINATOR,
    URL,
    Desk,
    Person,
    folder,
    make_manifest,
    make_table,
    people,
    seeded,
    take_part,
    together,
)

__all__ = ["folder", "seeded"]

Seeded = Callable[[int | str], SeededEntropy]

SDQ = {"n_databases": 3, "max_colluders": 1, "depth": 1}


def spent(person: Person) -> Counter[str]:
    """Return how often the ledger counts each question of a participant as sent."""
    with LedgerFile(person.path, person.clock) as ledger:
        ledger.verify()
        assert ledger.list_pending() == (), "all that was drawn is acknowledged"
        return Counter(entry.release.question for entry in ledger.list_history())


def drawn(desk: Desk) -> dict[object, set[bytes]]:
    """Return the bytes of each priced message by name: more than one is a second draw."""
    found: dict[object, set[bytes]] = {}
    for sender, payload in desk.came:
        message = decode(payload, desk.host.machine.messages, desk.manifest.digest)
        if message.spends:
            found.setdefault((sender, message.type_name, message.submission), set()).add(payload)
    return found


def run_all(manifest: Manifest, everyone: list[Person], loss: int = 0) -> tuple[Desk, list[Any]]:
    desk = Desk(manifest, loss=loss)
    return desk, asyncio.run(together(desk, manifest, everyone))


@pytest.mark.parametrize("loss", [0, 3])
def test_people_answer_anonymously(folder: Path, seeded: Seeded, loss: int) -> None:
    manifest = make_manifest("anonml", 4)
    everyone = people(folder, [make_table(1, i) for i in range(4)])
    desk, ends = run_all(manifest, everyone, loss)
    assert {one.status for one in ends} == {"finished"}
    assert {sender for sender, _ in desk.came} == {""}
    assert len({payload for _, payload in desk.came}) == 4
    assert len(desk.tickets) == 4
    assert desk.rejected == []


@pytest.mark.parametrize("admission", ["open", "signed", "token"])
def test_devices_send_all_updates(folder: Path, seeded: Seeded, admission: str) -> None:
    settings = {"n_instances": 2, "admission": admission}
    manifest = make_manifest(
        "ddml",
        2,
        ddml=settings,
        privacy={"epsilon": 4.0, "n_updates": 3},
        participation={"minimum": 2, "size": 2},
    )
    everyone = people(folder, [make_table(5, i) for i in range(2)])
    desk, ends = run_all(manifest, everyone, loss=4)
    assert [(one.status, one.result) for one in ends] == [("finished", 3)] * 2
    assert len({body for body, _ in desk.updates}) == 6
    assert len(desk.enrolled) == (0 if admission == "open" else 2)
    proofs = {proof for _, proof in desk.updates}
    if admission == "open":
        assert proofs == {None}
    else:
        senders = desk.tickets if admission == "token" else {key.hex() for key in desk.enrolled}
        assert proofs == {f"{sender} {number}" for sender in senders for number in range(3)}


def test_delivered_message_is_removed_with_next_save(
    folder: Path, seeded: Seeded, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, privacy = {"n_instances": 1, "admission": "signed"}, {"epsilon": 4.0, "n_updates": 3}
    manifest = make_manifest(
        "ddml", 1, ddml=settings, privacy=privacy, participation={"minimum": 1, "size": 1}
    )
    (person,) = people(folder, [make_table(5, 0)])
    struck, delivered = list[tuple[int, ...]](), Journal.remove_messages

    def note(journal: Journal, study: str, *numbers: int) -> None:
        struck.append(numbers)
        delivered(journal, study, *numbers)

    monkeypatch.setattr(Journal, "remove_messages", note)
    _, ends = run_all(manifest, [person])
    assert [one.status for one in ends] == ["finished"]
    # Three draws and three updates were delivered. Only behind the last of them nothing was to
    # come.
    assert len(struck) == 1
    with Journal(person.path, person.clock) as journal:
        assert journal.load(manifest.digest.hex()).messages == ()


@pytest.mark.parametrize("loss", [0, 4])
def test_databases_take_part_in_secure_sums(folder: Path, seeded: Seeded, loss: int) -> None:
    everyone = people(folder, [make_table(20, i) for i in range(3)])
    manifest = make_manifest(
        "sdq", 3, tuple(one.public() for one in everyone), sdq={**SDQ, "choice": "sums"}
    )
    desk, ends = run_all(manifest, everyone, loss)
    assert desk.status == "done"
    assert {one.status for one in ends} == {"finished"}
    assert len({tuple(spent(one).items()) for one in everyone}) == 1


def test_committee_computes_in_child_processes(folder: Path, seeded: Seeded) -> None:
    everyone = people(folder, [make_table(20, i) for i in range(3)])
    manifest = make_manifest(
        "sdq", 3, tuple(one.public() for one in everyone), sdq={**SDQ, "choice": "mpc"}
    )
    desk = Desk(manifest)
    # Processes take real time, and nobody is late.
    desk.is_hasty = False
    with ExitStack() as stack:
        for person in everyone:
            person.computer = stack.enter_context(MPyCWorkers())
        ends = asyncio.run(together(desk, manifest, everyone))
    assert desk.status == "done"
    assert {one.status for one in ends} == {"finished"}
    assert any(b"joint" in payload for _, payload in desk.came)


@pytest.mark.parametrize("variant", ["plus", "paper"])
def test_holders_share_and_reader_reads(folder: Path, seeded: Seeded, variant: str) -> None:
    manifest = make_manifest("pfds", 3, variant=variant, pfds={"n_holders": 3})
    everyone = people(folder, [make_table(30, i) for i in range(4)])
    everyone[3].role, everyone[3].table = "reader", None
    desk, ends = run_all(manifest, everyone)
    assert desk.status == "done"
    assert {one.status for one in ends} == {"finished"}
    assert set(desk.enrolled.values()) == {"holder-0", "holder-1", "holder-2"}
    assert isinstance(ends[0].result, PersonalModel) is (variant == "plus")
    assert spent(everyone[3]) == Counter()


def test_holders_on_roster_share_sums(folder: Path, seeded: Seeded) -> None:
    everyone = people(folder, [make_table(30, i) for i in range(3)])
    manifest = make_manifest(
        "pfds",
        3,
        tuple(one.public() for one in everyone),
        trust="secure-sum",
        pfds={"n_holders": 3},
    )
    desk, ends = run_all(manifest, everyone)
    assert desk.status == "done"
    assert {one.status for one in ends} == {"finished"}


CASES: dict[str, dict[str, Any]] = {
    "anonml": {},
    "ddml": {
        "ddml": {"n_instances": 2, "admission": "signed"},
        "privacy": {"epsilon": 4.0, "n_updates": 3},
    },
    "sdq": {"sdq": {**SDQ, "choice": "sums"}},
    "pfds": {"pfds": {"n_holders": 3}},
}


@pytest.mark.parametrize("protocol", CASES)
def test_crashed_participant_resumes_and_draws_once(
    folder: Path, seeded: Seeded, protocol: str
) -> None:
    everyone = people(folder, [make_table(1 if protocol == "anonml" else 20, i) for i in range(3)])
    keys = tuple(one.public() for one in everyone) if protocol == "sdq" else ()
    for one in everyone:
        one.crash = 6
    desk, ends = run_all(make_manifest(protocol, 3, keys, **CASES[protocol]), everyone, loss=5)
    assert sum(one.n_crashes for one in everyone) > 3
    assert {one.status for one in ends} == {"finished"}
    assert {len(payloads) for payloads in drawn(desk).values()} == {1}
    assert len(drawn(desk)) == sum(spent(one).total() for one in everyone)
    assert all(n == 1 for one in everyone for n in spent(one).values())
    assert desk.rejected == []


def test_second_run_finds_study_finished(folder: Path, seeded: Seeded) -> None:
    manifest = make_manifest("pfds", 3, pfds={"n_holders": 3})
    everyone = people(folder, [make_table(20, i) for i in range(3)])
    desk, ends = run_all(manifest, everyone)
    n = len(desk.came)
    again = asyncio.run(together(desk, manifest, everyone))
    assert [one.state for one in again] == [one.state for one in ends]
    assert [one.status for one in again] == ["finished"] * 3
    assert len(desk.came) == n


def test_failed_save_sends_nothing(
    folder: Path, seeded: Seeded, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = make_manifest("pfds", 3, pfds={"n_holders": 3})
    (person,) = people(folder, [make_table(20)])
    desk = Desk(manifest)

    def full(*_: object) -> None:
        raise StoreError("LEDGER-002", "There is no room.")

    with monkeypatch.context() as patch:
        patch.setattr(LedgerFile, "store", full)
        with pytest.raises(StoreError, match="LEDGER-002"):
            asyncio.run(person.join(desk, manifest))
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "save", full)
        with pytest.raises(StoreError, match="LEDGER-002"):
            asyncio.run(person.join(desk, manifest))
    assert desk.came == []
    everyone = [
        person,
        *people(folder / "others", [make_table(20, 1), make_table(20, 2)], "others"),
    ]
    assert {one.status for one in asyncio.run(together(desk, manifest, everyone))} == {"finished"}


def test_second_process_is_refused_while_study_is_locked(folder: Path, seeded: Seeded) -> None:
    manifest = make_manifest("anonml", 4)
    (person,) = people(folder, [make_table(1)])
    desk = Desk(manifest)

    async def twice() -> list[Any]:
        return await asyncio.gather(
            person.join(desk, manifest), person.join(desk, manifest), return_exceptions=True
        )

    first, second = asyncio.run(twice())
    assert first.status == "finished"
    assert isinstance(second, StoreError)
    assert second.code == "LEDGER-003"


def test_run_requires_consent_and_system_entropy(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = make_manifest("anonml", 4)
    (person,) = people(folder, [make_table(1)])
    offer = Offer(URL, StudyHandle(manifest), COORDINATOR.public_key)
    with (
        LedgerFile(person.path, person.clock) as ledger,
        Journal(person.path, person.clock) as journal,
    ):
        taking = partial(
            take_part, offer, person.table, journal, ledger, Desk(manifest), person.clock
        )
        with pytest.raises(ConsentError, match="CONSENT-001"):
            asyncio.run(taking(SystemEntropy()))
        with pytest.raises(LocalProtocolError, match="ENTROPY-001"):
            asyncio.run(taking(SeededEntropy(1)))


def test_study_of_other_coordinator_is_refused(folder: Path, seeded: Seeded) -> None:
    manifest, other = make_manifest("anonml", 1), Identity.from_seed(bytes(32))
    (person,) = people(folder, [make_table(1)])
    first, second = Desk(manifest), Desk(manifest, identity=other, url="http://127.0.0.1:8701")
    with Journal(person.path, person.clock) as journal:
        record_consent(
            journal,
            Offer(URL, StudyHandle(manifest), COORDINATOR.public_key),
            "rows.csv",
            seeded(1),
        )
    with (
        LedgerFile(person.path, person.clock) as ledger,
        Journal(person.path, person.clock) as journal,
    ):
        offer = Offer(second.url, StudyHandle(manifest), other.public_key)
        with pytest.raises(ConsentError, match="is a different one"):
            asyncio.run(
                take_part(offer, person.table, journal, ledger, second, person.clock, seeded(1))
            )
    assert not second.enrolled and not second.came
    assert asyncio.run(person.join(first, manifest)).status == "finished"


def test_refused_message_is_not_resent(
    folder: Path, seeded: Seeded, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = make_manifest("pfds", 3, pfds={"n_holders": 3})
    everyone = people(folder, [make_table(20, i) for i in range(3)])
    desk, refused = Desk(manifest), []
    take = desk._take

    def picky(sender: str, payload: bytes) -> None:
        if sender == "holder-1":
            refused.append(payload)
            raise RefusedError("MSG-005", "No.", status=400)
        take(sender, payload)

    monkeypatch.setattr(desk, "_take", picky)
    ends = asyncio.run(together(desk, manifest, everyone))
    assert len(refused) == 1
    assert {one.status for one in ends} == {"aborted"}, (
        "with two of three the study fails, and says so to everyone"
    )
    assert all("PFDS-004" in (one.reason or "") for one in ends)
    assert any(
        line.startswith("refused by the coordinator (MSG-005)")
        for one in everyone
        for line in one.said
    )


def test_not_admitted_participant_gets_error(
    folder: Path, seeded: Seeded, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = make_manifest("pfds", 3, pfds={"n_holders": 3})
    (person,) = people(folder, [make_table(20)])
    desk = Desk(manifest)

    def shut(*_: object) -> None:
        raise RefusedError("ENROL-001", "You have left.", status=403)

    monkeypatch.setattr(desk, "_take", shut)
    with pytest.raises(RefusedError, match="ENROL-001"):
        asyncio.run(person.join(desk, manifest))
    monkeypatch.undo()


def test_last_messages_are_polled_after_end(folder: Path, seeded: Seeded) -> None:
    """The study ends between make_reader its status and its messages, in either order."""

    class Hasty(Desk):
        n_ends: ClassVar[Counter[str]] = Counter()

        def _letters(self, name: str, after: int) -> MessagePage:
            found = super()._letters(name, after)
            self.n_ends[name] += found.status != "open"
            return found.replace(letters=()) if self.n_ends[name] == 1 else found

    manifest = make_manifest("pfds", 3, pfds={"n_holders": 3})
    everyone = people(folder, [make_table(20, i) for i in range(3)])
    ends = asyncio.run(together(Hasty(manifest), manifest, everyone))
    assert {one.status for one in ends} == {"finished"}


def test_ended_study_ends_waiting_participant(folder: Path, seeded: Seeded) -> None:
    for protocol in ("anonml", "ddml", "pfds"):
        manifest = make_manifest(protocol, 3, **CASES[protocol])
        (person,) = people(folder / protocol, [make_table(1)])
        desk = Desk(manifest)
        desk.letters.clear()
        desk.status = "closed"
        assert asyncio.run(person.join(desk, manifest)).status == "over"
        assert spent(person).total() == (protocol == "pfds")


def test_lowered_limit_keeps_drawn_answer_unsent(
    folder: Path, seeded: Seeded, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = make_manifest("pfds", 3, pfds={"n_holders": 3})
    (person,) = people(folder, [make_table(20)])
    desk = Desk(manifest)

    def lowered(*_: object) -> None:
        raise BudgetError("BUDGET-002", "Too much.")

    monkeypatch.setattr(LedgerFile, "mark_sending", lowered)
    end = asyncio.run(person.join(desk, manifest))
    assert end.status == "aborted"
    assert "BUDGET-002" in (end.reason or "")
    assert desk.came == []
    with LedgerFile(person.path, person.clock) as ledger:
        assert [entry.state for entry in ledger.list_pending()] == ["stored"]
        assert ledger.list_history() == ()


def test_other_answer_at_coordinator_aborts_study(
    folder: Path, seeded: Seeded, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = make_manifest("ddml", 2, **CASES["ddml"])
    (person,) = people(folder, [make_table(5)])
    desk, n_asked = Desk(manifest), list[None]()

    def has_another(*_: object) -> None:
        n_asked.append(None)
        raise RefusedError("HOST-005", "Other bytes.", status=409)

    monkeypatch.setattr(desk, "_update", has_another)
    for _ in range(2):
        end = asyncio.run(person.join(desk, manifest))
        assert end.status == "aborted"
        assert (end.reason or "").startswith("LEDGER-007") and "shoal ledger verify" in (
            end.reason or ""
        )
    assert len(n_asked) == 1, "nothing more is sent"
    with (
        LedgerFile(person.path, person.clock) as ledger,
        Journal(person.path, person.clock) as journal,
    ):
        assert [entry.state for entry in ledger.entries()] == ["sending"], (
            "what may have left is spent"
        )
        assert journal.load(manifest.digest.hex()).messages == ()


def make_reader(folder: Path, seeded: Seeded) -> tuple[Person, Desk, Callable[[], Any]]:
    """Return a holder on a roster, and a function with which it takes part as a reader."""
    everyone = people(folder, [make_table(20, i) for i in range(3)])
    manifest = make_manifest(
        "pfds", 3, tuple(one.public() for one in everyone), pfds={"n_holders": 3}
    )
    desk, person = Desk(manifest), everyone[0]
    offer = Offer(URL, StudyHandle(manifest), COORDINATOR.public_key)

    def read() -> Any:
        with (
            LedgerFile(person.path, person.clock) as ledger,
            Journal(person.path, person.clock) as journal,
        ):
            return asyncio.run(
                take_part(
                    offer,
                    person.table,
                    journal,
                    ledger,
                    desk,
                    person.clock,
                    seeded(2),
                    role="reader",
                )
            )

    return person, desk, read


def test_reader_is_refused_if_journal_says_sharer(folder: Path, seeded: Seeded) -> None:
    person, desk, read = make_reader(folder, seeded)
    with Journal(person.path, person.clock) as journal:
        record_consent(
            journal,
            Offer(URL, StudyHandle(desk.manifest), COORDINATOR.public_key),
            "rows.csv",
            seeded(1),
        )
    with pytest.raises(ConsentError, match="you agreed to share data"):
        read()
    assert not desk.enrolled and not desk.came


def test_reader_with_previewed_answers_is_refused(folder: Path, seeded: Seeded) -> None:
    person, desk, read = make_reader(folder, seeded)
    study = desk.manifest.digest.hex()
    with (
        LedgerFile(person.path, person.clock) as ledger,
        Journal(person.path, person.clock) as journal,
    ):
        record_consent(
            journal,
            Offer(URL, StudyHandle(desk.manifest), COORDINATOR.public_key),
            "rows.csv",
            seeded(1),
            role="reader",
        )
        event = make_plan(desk.manifest.study, desk.manifest.digest).charges[0]
        ledger.reserve(study, "tables", event, source="rows.csv", recipient=URL, title="Wind")
        ledger.store(study, "tables", b"drawn for a preview")
    with pytest.raises(ConsentError, match="from an earlier --preview"):
        read()
    assert not desk.came
    with LedgerFile(person.path, person.clock) as ledger:
        assert [entry.state for entry in ledger.entries()] == ["stored"]


def test_progress_is_reported_in_order(folder: Path, seeded: Seeded) -> None:
    manifest = make_manifest("ddml", 2, **CASES["ddml"])
    (person,) = people(folder, [make_table(5)])
    for _ in range(2):
        asyncio.run(person.join(Desk(manifest), manifest))
    assert person.said == [
        "enrolled",
        *(f"{question} delivered" for question in spent(person)),
        "all questions answered",
    ]
