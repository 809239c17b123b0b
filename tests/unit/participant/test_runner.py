"""The driver over HTTP: every study to its end, through losses and crashes, with one draw for each question."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest

from participants import COORDINATOR, URL, Desk, Person, folder, manifest_of, people, seeded, table_of, together
from shoal.crypto.roster import Identity
from shoal.entropy import SeededEntropy, SystemEntropy
from shoal.errors import BudgetError, ConsentError, LocalProtocolError, StoreError
from shoal.messages.codec import decode
from shoal.mpc.children import Children
from shoal.participant.client import RefusedError
from shoal.participant.journal import Journal
from shoal.participant.ledger_file import LedgerFile
from shoal.participant.offers import Offer, take_up
from shoal.participant.runner import run
from shoal.protocols.pfds.home import Home
from shoal.study.manifest import Manifest
from shoal.study.plan import make_plan
from shoal.transport.forms import Letters

__all__ = ["folder", "seeded"]

Seeded = Callable[[int | str], SeededEntropy]

SDQ = {"n_databases": 3, "max_colluders": 1, "depth": 1}


def spent(person: Person) -> Counter[str]:
    """How often each question of a participant was sent, by its ledger."""
    with LedgerFile(person.path, person.clock) as ledger:
        ledger.verify()
        assert ledger.pending() == (), "all that was drawn is acknowledged"
        return Counter(entry.release.question for entry in ledger.history())


def drawn(desk: Desk) -> dict[object, set[bytes]]:
    """All bytes that came under each name of a priced message; more than one would be a second draw."""
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
    manifest = manifest_of("anonml", 4)
    everyone = people(folder, [table_of(1, i) for i in range(4)])
    desk, ends = run_all(manifest, everyone, loss)
    assert {one.standing for one in ends} == {"finished"}
    assert {sender for sender, _ in desk.came} == {""}
    assert len({payload for _, payload in desk.came}) == 4
    assert len(desk.tickets) == 4
    assert desk.rejected == []


@pytest.mark.parametrize("admission", ["open", "signed", "token"])
def test_devices_send_their_updates(folder: Path, seeded: Seeded, admission: str) -> None:
    settings = {"n_instances": 2, "admission": admission}
    manifest = manifest_of("ddml", 2, ddml=settings, privacy={"epsilon": 4.0, "n_updates": 3}, participation={"minimum": 2, "size": 2})
    everyone = people(folder, [table_of(5, i) for i in range(2)])
    desk, ends = run_all(manifest, everyone, loss=4)
    assert [(one.standing, one.result) for one in ends] == [("finished", 3)] * 2
    assert len({body for body, _ in desk.updates}) == 6
    assert len(desk.enrolled) == (0 if admission == "open" else 2)
    proofs = {proof for _, proof in desk.updates}
    if admission == "open":
        assert proofs == {None}
    else:
        senders = desk.tickets if admission == "token" else {key.hex() for key in desk.enrolled}
        assert proofs == {f"{sender} {number}" for sender in senders for number in range(3)}


def test_what_was_delivered_is_struck_with_what_is_saved_next(folder: Path, seeded: Seeded, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, privacy = {"n_instances": 1, "admission": "signed"}, {"epsilon": 4.0, "n_updates": 3}
    manifest = manifest_of("ddml", 1, ddml=settings, privacy=privacy, participation={"minimum": 1, "size": 1})
    (person,) = people(folder, [table_of(5, 0)])
    struck, delivered = list[tuple[int, ...]](), Journal.delivered

    def note(journal: Journal, study: str, *numbers: int) -> None:
        struck.append(numbers)
        delivered(journal, study, *numbers)

    monkeypatch.setattr(Journal, "delivered", note)
    _, ends = run_all(manifest, [person])
    assert [one.standing for one in ends] == ["finished"]
    # Three draws and three updates were delivered. Only behind the last of them nothing was to come.
    assert len(struck) == 1
    with Journal(person.path, person.clock) as journal:
        assert journal.load(manifest.digest.hex()).letters == ()


@pytest.mark.parametrize("loss", [0, 4])
def test_databases_take_part_in_secure_sums(folder: Path, seeded: Seeded, loss: int) -> None:
    everyone = people(folder, [table_of(20, i) for i in range(3)])
    manifest = manifest_of("sdq", 3, tuple(one.public() for one in everyone), sdq={**SDQ, "choice": "sums"})
    desk, ends = run_all(manifest, everyone, loss)
    assert desk.status == "done"
    assert {one.standing for one in ends} == {"finished"}
    assert len({tuple(spent(one).items()) for one in everyone}) == 1


def test_a_committee_computes_in_child_processes(folder: Path, seeded: Seeded) -> None:
    everyone = people(folder, [table_of(20, i) for i in range(3)])
    manifest = manifest_of("sdq", 3, tuple(one.public() for one in everyone), sdq={**SDQ, "choice": "mpc"})
    desk = Desk(manifest)
    # Processes take real time, and nobody is late.
    desk.is_hasty = False
    with ExitStack() as stack:
        for person in everyone:
            person.computer = stack.enter_context(Children())
        ends = asyncio.run(together(desk, manifest, everyone))
    assert desk.status == "done"
    assert {one.standing for one in ends} == {"finished"}
    assert any(b"joint" in payload for _, payload in desk.came)


@pytest.mark.parametrize("variant", ["plus", "paper"])
def test_holders_share_and_a_reader_reads(folder: Path, seeded: Seeded, variant: str) -> None:
    manifest = manifest_of("pfds", 3, variant=variant, pfds={"n_holders": 3})
    everyone = people(folder, [table_of(30, i) for i in range(4)])
    everyone[3].role, everyone[3].table = "reader", None
    desk, ends = run_all(manifest, everyone)
    assert desk.status == "done"
    assert {one.standing for one in ends} == {"finished"}
    assert set(desk.enrolled.values()) == {"holder-0", "holder-1", "holder-2"}
    assert isinstance(ends[0].result, Home) is (variant == "plus")
    assert spent(everyone[3]) == Counter()


def test_holders_of_a_roster_share_sums(folder: Path, seeded: Seeded) -> None:
    everyone = people(folder, [table_of(30, i) for i in range(3)])
    manifest = manifest_of("pfds", 3, tuple(one.public() for one in everyone), trust="secure-sum", pfds={"n_holders": 3})
    desk, ends = run_all(manifest, everyone)
    assert desk.status == "done"
    assert {one.standing for one in ends} == {"finished"}


CASES: dict[str, dict[str, Any]] = {
    "anonml": {},
    "ddml": {"ddml": {"n_instances": 2, "admission": "signed"}, "privacy": {"epsilon": 4.0, "n_updates": 3}},
    "sdq": {"sdq": {**SDQ, "choice": "sums"}},
    "pfds": {"pfds": {"n_holders": 3}},
}


@pytest.mark.parametrize("protocol", CASES)
def test_what_goes_down_goes_on_and_draws_once(folder: Path, seeded: Seeded, protocol: str) -> None:
    everyone = people(folder, [table_of(1 if protocol == "anonml" else 20, i) for i in range(3)])
    keys = tuple(one.public() for one in everyone) if protocol == "sdq" else ()
    for one in everyone:
        one.crash = 6
    desk, ends = run_all(manifest_of(protocol, 3, keys, **CASES[protocol]), everyone, loss=5)
    assert sum(one.n_crashes for one in everyone) > 3
    assert {one.standing for one in ends} == {"finished"}
    assert {len(payloads) for payloads in drawn(desk).values()} == {1}
    assert len(drawn(desk)) == sum(spent(one).total() for one in everyone)
    assert all(n == 1 for one in everyone for n in spent(one).values())
    assert desk.rejected == []


def test_a_second_run_finds_all_done(folder: Path, seeded: Seeded) -> None:
    manifest = manifest_of("pfds", 3, pfds={"n_holders": 3})
    everyone = people(folder, [table_of(20, i) for i in range(3)])
    desk, ends = run_all(manifest, everyone)
    n = len(desk.came)
    again = asyncio.run(together(desk, manifest, everyone))
    assert [one.state for one in again] == [one.state for one in ends]
    assert [one.standing for one in again] == ["finished"] * 3
    assert len(desk.came) == n


def test_nothing_is_sent_that_could_not_be_saved(folder: Path, seeded: Seeded, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = manifest_of("pfds", 3, pfds={"n_holders": 3})
    (person,) = people(folder, [table_of(20)])
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
    everyone = [person, *people(folder / "others", [table_of(20, 1), table_of(20, 2)], "others")]
    assert {one.standing for one in asyncio.run(together(desk, manifest, everyone))} == {"finished"}


def test_a_study_is_taken_part_in_once_at_a_time(folder: Path, seeded: Seeded) -> None:
    manifest = manifest_of("anonml", 4)
    (person,) = people(folder, [table_of(1)])
    desk = Desk(manifest)

    async def twice() -> list[Any]:
        return await asyncio.gather(person.join(desk, manifest), person.join(desk, manifest), return_exceptions=True)

    first, second = asyncio.run(twice())
    assert first.standing == "finished"
    assert isinstance(second, StoreError)
    assert second.code == "LEDGER-003"


def test_a_study_needs_consent_and_real_randomness(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = manifest_of("anonml", 4)
    (person,) = people(folder, [table_of(1)])
    offer = Offer(URL, manifest, manifest.digest.hex(), COORDINATOR.public)
    with LedgerFile(person.path, person.clock) as ledger, Journal(person.path, person.clock) as journal:
        taking = partial(run, journal, ledger, offer, person.table, Desk(manifest), person.clock)
        with pytest.raises(ConsentError, match="CONSENT-001"):
            asyncio.run(taking(SystemEntropy()))
        with pytest.raises(LocalProtocolError, match="ENTROPY-001"):
            asyncio.run(taking(SeededEntropy(1)))


def test_a_study_is_answered_at_one_coordinator(folder: Path, seeded: Seeded) -> None:
    manifest, other = manifest_of("anonml", 1), Identity.from_seed(bytes(32))
    (person,) = people(folder, [table_of(1)])
    first, second = Desk(manifest), Desk(manifest, identity=other, url="http://127.0.0.1:8701")
    with Journal(person.path, person.clock) as journal:
        take_up(journal, Offer(URL, manifest, manifest.digest.hex(), COORDINATOR.public), "rows.csv", seeded(1))
    with LedgerFile(person.path, person.clock) as ledger, Journal(person.path, person.clock) as journal:
        offer = Offer(second.url, manifest, manifest.digest.hex(), other.public)
        with pytest.raises(ConsentError, match="another coordinator"):
            asyncio.run(run(journal, ledger, offer, person.table, second, person.clock, seeded(1)))
    assert not second.enrolled and not second.came
    assert asyncio.run(person.join(first, manifest)).standing == "finished"


def test_a_letter_that_is_refused_is_not_sent_again(folder: Path, seeded: Seeded, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = manifest_of("pfds", 3, pfds={"n_holders": 3})
    everyone = people(folder, [table_of(20, i) for i in range(3)])
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
    assert {one.standing for one in ends} == {"aborted"}, "with two of three the study fails, and says so to everyone"
    assert all("PFDS-004" in (one.reason or "") for one in ends)
    assert any(line.startswith("not taken (MSG-005)") for one in everyone for line in one.said)


def test_a_participant_that_is_not_wanted_hears_of_it(folder: Path, seeded: Seeded, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = manifest_of("pfds", 3, pfds={"n_holders": 3})
    (person,) = people(folder, [table_of(20)])
    desk = Desk(manifest)

    def shut(*_: object) -> None:
        raise RefusedError("ENROL-001", "You have left.", status=403)

    monkeypatch.setattr(desk, "_take", shut)
    with pytest.raises(RefusedError, match="ENROL-001"):
        asyncio.run(person.join(desk, manifest))
    monkeypatch.undo()


def test_the_last_letters_may_be_read_after_the_end(folder: Path, seeded: Seeded) -> None:
    """The status is read first and the letters then, or the other way round, and the study ends in between."""

    class Hasty(Desk):
        n_ends: ClassVar[Counter[str]] = Counter()

        def _letters(self, name: str, after: int) -> Letters:
            found = super()._letters(name, after)
            self.n_ends[name] += found.status != "open"
            return found.replace(letters=()) if self.n_ends[name] == 1 else found

    manifest = manifest_of("pfds", 3, pfds={"n_holders": 3})
    everyone = people(folder, [table_of(20, i) for i in range(3)])
    ends = asyncio.run(together(Hasty(manifest), manifest, everyone))
    assert {one.standing for one in ends} == {"finished"}


def test_a_study_that_is_over_ends_whoever_waits(folder: Path, seeded: Seeded) -> None:
    for protocol in ("anonml", "ddml", "pfds"):
        manifest = manifest_of(protocol, 3, **CASES[protocol])
        (person,) = people(folder / protocol, [table_of(1)])
        desk = Desk(manifest)
        desk.letters.clear()
        desk.status = "closed"
        assert asyncio.run(person.join(desk, manifest)).standing == "over"
        assert spent(person).total() == (protocol == "pfds")


def test_a_limit_that_was_lowered_keeps_what_was_drawn(folder: Path, seeded: Seeded, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = manifest_of("pfds", 3, pfds={"n_holders": 3})
    (person,) = people(folder, [table_of(20)])
    desk = Desk(manifest)

    def lowered(*_: object) -> None:
        raise BudgetError("BUDGET-002", "Too much.")

    monkeypatch.setattr(LedgerFile, "mark_sending", lowered)
    end = asyncio.run(person.join(desk, manifest))
    assert end.standing == "aborted"
    assert "BUDGET-002" in (end.reason or "")
    assert desk.came == []
    with LedgerFile(person.path, person.clock) as ledger:
        assert [entry.state for entry in ledger.pending()] == ["stored"]
        assert ledger.history() == ()


def test_an_answer_of_which_the_coordinator_has_another_ends_it_with_a_sentence(
    folder: Path, seeded: Seeded, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = manifest_of("ddml", 2, **CASES["ddml"])
    (person,) = people(folder, [table_of(5)])
    desk, n_asked = Desk(manifest), list[None]()

    def has_another(*_: object) -> None:
        n_asked.append(None)
        raise RefusedError("HOST-005", "Other bytes.", status=409)

    monkeypatch.setattr(desk, "_update", has_another)
    for _ in range(2):
        end = asyncio.run(person.join(desk, manifest))
        assert end.standing == "aborted"
        assert (end.reason or "").startswith("LEDGER-007") and "shoal ledger verify" in (end.reason or "")
    assert len(n_asked) == 1, "nothing more is sent"
    with LedgerFile(person.path, person.clock) as ledger, Journal(person.path, person.clock) as journal:
        assert [entry.state for entry in ledger.entries()] == ["sending"], "what may have left is spent"
        assert journal.load(manifest.digest.hex()).letters == ()


def reading(folder: Path, seeded: Seeded) -> tuple[Person, Desk, Callable[[], Any]]:
    """A holder on a roster, and how it takes part as one who only reads."""
    everyone = people(folder, [table_of(20, i) for i in range(3)])
    manifest = manifest_of("pfds", 3, tuple(one.public() for one in everyone), pfds={"n_holders": 3})
    desk, person = Desk(manifest), everyone[0]
    offer = Offer(URL, manifest, manifest.digest.hex(), COORDINATOR.public)

    def read() -> Any:
        with LedgerFile(person.path, person.clock) as ledger, Journal(person.path, person.clock) as journal:
            return asyncio.run(run(journal, ledger, offer, person.table, desk, person.clock, seeded(2), role="reader"))

    return person, desk, read


def test_whoever_reads_now_shares_nothing_whatever_the_journal_says(folder: Path, seeded: Seeded) -> None:
    person, desk, read = reading(folder, seeded)
    with Journal(person.path, person.clock) as journal:
        take_up(journal, Offer(URL, desk.manifest, desk.manifest.digest.hex(), COORDINATOR.public), "rows.csv", seeded(1))
    with pytest.raises(ConsentError, match="you share, and not otherwise"):
        read()
    assert not desk.enrolled and not desk.came


def test_whoever_reads_shares_nothing_that_a_preview_holds(folder: Path, seeded: Seeded) -> None:
    person, desk, read = reading(folder, seeded)
    study = desk.manifest.digest.hex()
    with LedgerFile(person.path, person.clock) as ledger, Journal(person.path, person.clock) as journal:
        take_up(journal, Offer(URL, desk.manifest, study, COORDINATOR.public), "rows.csv", seeded(1), role="reader")
        event = make_plan(desk.manifest.study, desk.manifest.digest).charges[0]
        ledger.reserve(study, "tables", event, source="rows.csv", recipient=URL, title="Wind")
        ledger.store(study, "tables", b"drawn for a preview")
    with pytest.raises(ConsentError, match="drawn for a preview"):
        read()
    assert not desk.came
    with LedgerFile(person.path, person.clock) as ledger:
        assert [entry.state for entry in ledger.entries()] == ["stored"]


def test_what_is_told_comes_in_the_order_in_which_it_happens(folder: Path, seeded: Seeded) -> None:
    manifest = manifest_of("ddml", 2, **CASES["ddml"])
    (person,) = people(folder, [table_of(5)])
    for _ in range(2):
        asyncio.run(person.join(Desk(manifest), manifest))
    assert person.said == ["enrolled", *(f"{question} is delivered" for question in spent(person)), "all is answered"]
