"""The spool survives crashes without losses, and its file does not reveal times or order."""

from __future__ import annotations

import os
import signal
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from importlib.resources import files
from itertools import chain, permutations
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from scipy import stats

from shoal.entropy import Entropy, SeededEntropy, SystemEntropy
from shoal.errors import StoreError
from shoal.relay import spool as module
from shoal.relay.spool import SealedPacket, Spool, SpooledPhase, shuffle_list
from shoal.sqlite import create_database
from shoal.study.schedule import PhaseWindow
from tests.statistical.harness import catches, statistical
from tests.support.participants import child
from tests.support.relay_child import REFUSED_STEPS, STEPS, STUDY, WINDOW, number, nursery, packet

OTHER = "6" * 64
ALPHA = 1e-9


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "relay.db"


def sealed(i: int, study: str = STUDY, phase: int = 0, most: int = 1_000) -> SealedPacket:
    return SealedPacket(study, phase, packet(i), most)


def released(spool: Spool, study: str = STUDY) -> list[list[int]]:
    """The parts that are to be sent, in the order in which their packets would be sent now."""
    return [
        [number(one) for one in spool.read_part(study, part)] for part in spool.list_parts(study)
    ]


def test_spool_stores_repeated_packet_once(path: Path) -> None:
    with Spool(path, SystemEntropy()) as spool:
        assert spool.put([sealed(1), sealed(2), sealed(1), sealed(1, OTHER)]) == [
            "kept",
            "kept",
            "repeated",
            "kept",
        ]
        assert spool.put([sealed(2)]) == ["repeated"]
        assert (
            spool.count_waiting(STUDY, 0),
            spool.count_waiting(OTHER, 0),
            spool.count_waiting(STUDY, 1),
        ) == (2, 1, 0)
    with Spool(path, SystemEntropy()) as spool:
        assert spool.put([sealed(1), sealed(3)]) == ["repeated", "kept"]
        assert spool.list_studies() == (STUDY, OTHER)


def test_spool_rejects_packets_beyond_limits(path: Path) -> None:
    with Spool(path, SystemEntropy(), max_bytes=5 * 400) as spool:
        assert spool.put([sealed(i, most=3) for i in range(4)]) == ["kept"] * 3 + ["full"]
        assert spool.put([sealed(0, most=3)]) == ["repeated"]
        assert spool.put([sealed(i, OTHER) for i in range(3)]) == ["kept", "kept", "full"]
    with Spool(path, SystemEntropy(), max_bytes=5 * 400) as spool:
        assert spool.put([sealed(9, OTHER)]) == ["full"]
        spool.drop_study(STUDY)
        assert spool.put([sealed(9, OTHER), sealed(3, most=3)]) == ["kept", "kept"]


def test_spool_splits_waiting_packets_into_even_parts(path: Path) -> None:
    with Spool(path, SystemEntropy()) as spool:
        spool.record_phase(STUDY, 0, WINDOW)
        spool.put([sealed(i) for i in range(10)] + [sealed(10, phase=1), sealed(11, OTHER)])
        assert spool.make_batch(STUDY, 0, 1, 11, 4) == 0 and spool.list_parts(STUDY) == ()
        assert spool.make_batch(STUDY, 0, 1, 1, 4) == 0, "it is settled"
        assert spool.make_batch(STUDY, 0, 2, 10, 4) == 10
        parts = released(spool)
        assert sorted(map(len, parts)) == [3, 3, 4]
        assert sorted(chain.from_iterable(parts)) == list(range(10))
        assert spool.put([sealed(3)]) == ["repeated"]
        spool.drop_part(STUDY, 1)
        assert spool.list_parts(STUDY) == (0, 2) and spool.put([sealed(parts[1][0])]) == ["kept"]
        spool.return_part(STUDY, 2)
        assert (
            spool.list_parts(STUDY) == (0,) and spool.count_waiting(STUDY, 0) == len(parts[2]) + 1
        )
        assert spool.make_resend_batch(STUDY, 100) == 0, "nothing of it was rubbish"
        assert spool.make_batch(STUDY, 0, 3, 1, 100) == len(parts[2]) + 1
        assert sorted(released(spool)[1]) == sorted([*parts[2], parts[1][0]])
        assert spool.make_batch(OTHER, 0, 1, 1, 4) == 0, "nothing was heard of its phases"


@pytest.mark.parametrize("answer", ["refused", "acknowledged", "rubbish"])
def test_shown_packets_do_not_count_towards_second_batch(path: Path, answer: str) -> None:
    """A coordinator that has a batch sent again, and finds one packet more in it, would know whose
    that is.
    """
    with Spool(path, SystemEntropy()) as spool:
        spool.record_phase(STUDY, 0, WINDOW)
        first = [sealed(i) for i in range(5)]
        spool.put(first)
        assert spool.make_batch(STUDY, 0, 1, 5, 100) == 5
        if answer == "refused":
            spool.return_part(STUDY, 0)
        elif answer == "acknowledged":
            spool.drop_part(STUDY, 0)
        else:
            spool.return_part(STUDY, 0, [one.sealed for one in first])
    with Spool(path, SystemEntropy()) as spool:
        # Their senders are told that nothing has arrived, and send the same again; somebody sends
        # for the first time.
        assert spool.put(first) == (["repeated"] if answer == "refused" else ["kept"]) * 5
        assert spool.put([sealed(7)]) == ["kept"] and spool.count_waiting(STUDY, 0) == 6
        assert spool.make_batch(STUDY, 0, 2, 5, 100) == 5
        assert [sorted(one) for one in released(spool)] == [[0, 1, 2, 3, 4]]
        # With others who are new there are enough.
        spool.put([sealed(i) for i in range(8, 12)])
        assert spool.make_batch(STUDY, 0, 3, 5, 100) == 5
        assert sorted(chain.from_iterable(released(spool))) == [0, 1, 2, 3, 4, 7, 8, 9, 10, 11]


def test_spool_resends_valid_packets_of_refused_part_alone(path: Path) -> None:
    """Parts in which there is too much of it are put together again, when all of them have been
    answered.
    """
    with Spool(path, SystemEntropy()) as spool:
        spool.record_phase(STUDY, 0, WINDOW)
        spool.put([sealed(i) for i in range(12)])
        assert spool.make_batch(STUDY, 0, 1, 12, 6) == 12
        spool.put([sealed(20)])
        first, second = (spool.read_part(STUDY, part) for part in (0, 1))
        spool.return_part(STUDY, 0, [one for one in first if number(one) >= 5])
        assert spool.make_resend_batch(STUDY, 6) == 0, "the other part is on its way"
    with Spool(path, SystemEntropy()) as spool:
        spool.return_part(
            STUDY, 1, [packet(99), *(one for one in second if number(one) >= 5), second[0]]
        )
        good = {number(one) for one in (*first, *second) if number(one) < 5} - {number(second[0])}
        assert (
            spool.make_resend_batch(STUDY, 6) == len(good)
            and spool.make_resend_batch(STUDY, 6) == 0
        )
        assert sorted(chain.from_iterable(released(spool))) == sorted(good)
        assert spool._count.by_study[STUDY] == len(good) + 1 and spool._count.n_bytes == 400 * (
            len(good) + 1
        )


def test_spool_keeps_digests_until_phase_is_over(path: Path) -> None:
    with Spool(path, SystemEntropy()) as spool:
        spool.record_phase(STUDY, 0, WINDOW)
        spool.put([sealed(i) for i in range(4)])
        spool.make_batch(STUDY, 0, 1, 1, 4)
        spool.drop_part(STUDY, 0)
        assert spool.put([sealed(0, most=1), sealed(1, most=1)]) == ["kept", "full"], (
            "they take no room"
        )
        spool.drop_late(STUDY, 0)
        assert spool._db.execute("SELECT count(*) FROM packets").fetchone() == (0,)
        spool.put([sealed(5)])
        spool.drop_study(STUDY)
        assert spool.list_studies() == () and spool.has_ended(STUDY) and not spool.has_ended(OTHER)


def test_spool_drops_late_packets_and_keeps_assigned_ones(path: Path) -> None:
    with Spool(path, SystemEntropy()) as spool:
        spool.record_phase(STUDY, 0, WINDOW)
        spool.put([sealed(0), sealed(1)])
        spool.make_batch(STUDY, 0, 1, 1, 4)
        spool.put([sealed(2), sealed(3, phase=1), sealed(4, OTHER)])
        spool.drop_late(STUDY, 0)
        assert (
            spool.count_waiting(STUDY, 0),
            spool.count_waiting(STUDY, 1),
            spool.count_waiting(OTHER, 0),
        ) == (0, 1, 1)
        assert [sorted(one) for one in released(spool)] == [[0, 1]]
        spool.drop_study(STUDY)
        assert spool.list_studies() == (OTHER,)


def test_spool_keeps_first_recorded_window_of_phase(path: Path) -> None:
    with Spool(path, SystemEntropy()) as spool:
        spool.record_phase(STUDY, 0, WINDOW)
        spool.record_phase(STUDY, 0, PhaseWindow(WINDOW.opened, WINDOW.collects_until))
        spool.make_batch(STUDY, 0, 1, 1, 1)
    with Spool(path, SystemEntropy()) as spool:
        assert spool.list_phases(STUDY) == (SpooledPhase(0, WINDOW, 1),)
        assert spool.pin_key(b"k" * 32) == b"k" * 32 == spool.pin_key(b"l" * 32)


def test_spool_rejects_second_relay(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.relay.spool._BUSY_SECONDS", 0.0)
    with (
        Spool(path, SystemEntropy()),
        pytest.raises(StoreError, match="RELAY-002  Another process has the spool"),
    ):
        Spool(path, SystemEntropy())
    Spool(path, SystemEntropy()).close()
    assert path.stat().st_mode & 0o077 == 0


def test_spool_rejects_other_file(path: Path) -> None:
    path.write_bytes(b"x" * 5_000)
    with pytest.raises(StoreError, match=r"RELAY-002  .* is not a relay's spool"):
        Spool(path, SystemEntropy())
    path.unlink()
    sqlite3.connect(path).execute("CREATE TABLE t (x)").connection.close()
    with pytest.raises(StoreError, match=r"RELAY-002  .* is not a relay's spool"):
        Spool(path, SystemEntropy())
    path.unlink()
    with Spool(path, SystemEntropy()) as spool:
        spool._db.execute("PRAGMA user_version = 3")
    with pytest.raises(StoreError, match=r"RELAY-002  .* version 3"):
        Spool(path, SystemEntropy())
    with pytest.raises(StoreError, match="RELAY-002"):
        Spool(path.parent / "nowhere" / "relay.db", SystemEntropy())


def test_spool_of_first_version_is_migrated(path: Path) -> None:
    """A relay's file from before the openings of phases were recorded keeps its phases."""
    schema = (files("shoal.relay") / "spool.sql").read_text(encoding="utf-8")
    create_database(path, module._APPLICATION_ID, (schema,), sqlite3.connect)
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(
            "INSERT INTO phases (study, phase, opened, closes) VALUES (?, 0, 1, 2)", (STUDY,)
        )
    with Spool(path, SystemEntropy()) as spool:
        [phase] = spool.list_phases(STUDY)
        assert (phase.number, phase.n_batches, phase.ask) == (0, 0, None)
        assert spool.record_ask(STUDY, 0, b"one") and spool.record_ask(STUDY, 0, b"one")
        assert not spool.record_ask(STUDY, 0, b"two")
    with Spool(path, SystemEntropy()) as spool:
        assert [phase.ask for phase in spool.list_phases(STUDY)] == [b"one"]


def test_spool_survives_full_disk(path: Path) -> None:
    with Spool(path, SystemEntropy()) as spool:
        spool.put([sealed(0)])
        (pages,) = spool._db.execute("PRAGMA page_count").fetchone()
        spool._db.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(StoreError, match="RELAY-002"):
            spool.put([sealed(i) for i in range(1, 500)])
        assert spool.count_waiting(STUDY, 0) == 1
        spool._db.execute("PRAGMA max_page_count = 100000")
        assert spool.put([sealed(i) for i in range(500)]) == ["repeated"] + ["kept"] * 499


class Life(RuleBasedStateMachine):
    """A spool against lists: each packet that was acknowledged is acknowledged by the coordinator
    once, deleted as late, or there.
    """

    @initialize()
    def begin(self) -> None:
        self.folder = TemporaryDirectory()
        self.path = Path(self.folder.name) / "relay.db"
        self.spool = Spool(self.path, SystemEntropy())
        self.spool.record_phase(STUDY, 0, WINDOW)
        self.waiting: set[int] = set()
        self.shown: set[int] = set()
        self.parted: set[int] = set()
        self.delivered: Counter[int] = Counter()
        self.settled = 0
        self.is_again = False
        self.n = 0

    @precondition(lambda self: self.delivered)
    @rule(which=st.integers(0, 10))
    def send_again(self, which: int) -> None:
        gone = sorted(set(self.delivered) - self.waiting - self.parted)
        if gone:
            i = gone[which % len(gone)]
            assert self.spool.put([sealed(i)]) == ["kept"]
            self.waiting.add(i)
            self.delivered.pop(i)

    @rule(n=st.integers(1, 6), again=st.booleans())
    def put(self, n: int, again: bool) -> None:
        numbers = list(range(self.n, self.n + n)) + (
            sorted(self.waiting | self.parted)[:2] if again else []
        )
        outcomes = self.spool.put([sealed(i) for i in numbers])
        assert outcomes == ["kept"] * n + ["repeated"] * (len(numbers) - n)
        self.waiting |= set(numbers[:n])
        self.n += n

    @rule(least=st.integers(1, 8), most=st.integers(1, 5))
    def settle(self, least: int, most: int) -> None:
        self.settled += 1
        n = self.spool.make_batch(STUDY, 0, self.settled, least, most)
        leave = (
            self.waiting if len(self.waiting - self.shown) >= least else self.waiting & self.shown
        )
        assert n == len(leave)
        self.parted |= leave
        self.waiting -= leave

    @rule(most=st.integers(1, 5))
    def settle_again(self, most: int) -> None:
        n = self.spool.make_resend_batch(STUDY, most)
        leave = self.waiting & self.shown if self.is_again and not self.parted else set()
        assert n == len(leave)
        self.is_again = self.is_again and bool(self.parted)
        self.parted |= leave
        self.waiting -= leave

    @precondition(lambda self: self.parted)
    @rule(
        which=st.integers(0, 10),
        fate=st.sampled_from(["acknowledged", "lost", "refused", "rubbish"]),
    )
    def send(self, which: int, fate: str) -> None:
        parts = self.spool.list_parts(STUDY)
        part = parts[which % len(parts)]
        numbers = {number(one) for one in self.spool.read_part(STUDY, part)}
        if fate == "acknowledged":
            self.delivered.update(numbers)
            self.spool.drop_part(STUDY, part)
            self.parted -= numbers
            self.shown |= numbers
        elif fate != "lost":
            rubbish = {min(numbers)} if fate == "rubbish" else set()
            self.is_again |= bool(rubbish)
            self.spool.return_part(STUDY, part, [packet(i) for i in rubbish])
            self.parted -= numbers
            self.waiting |= numbers - rubbish
            self.shown |= numbers

    @rule()
    def drop_late(self) -> None:
        self.spool.drop_late(STUDY, 0)
        self.waiting = set()
        self.shown &= self.parted

    @rule()
    def restart(self) -> None:
        self.spool.close()
        self.spool = Spool(self.path, SystemEntropy())

    @rule()
    def tidy(self) -> None:
        self.spool.rewrite_sorted()

    @invariant()
    def all_is_there(self) -> None:
        assert self.spool.count_waiting(STUDY, 0) == len(self.waiting)
        assert set(chain.from_iterable(released(self.spool))) == self.parted
        assert all(n == 1 for n in self.delivered.values())
        assert self.spool._count.by_study.get(STUDY, 0) == len(self.waiting | self.parted)

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.spool.close()
            self.folder.cleanup()


Life.TestCase.settings = settings(max_examples=15, stateful_step_count=20)
TestLife = Life.TestCase


@pytest.fixture(scope="module")
def life() -> Iterator[Connection]:
    """A process that has children, to be killed."""
    with child(nursery) as (link, _):
        yield link


def rest_of(link: Connection) -> list[tuple[str, int]]:
    """What a child has said until it was dead."""
    heard: list[tuple[str, int]] = []
    while not heard or heard[-1][0] != "dead":
        heard.append(link.recv())
    return heard


@pytest.mark.parametrize("step", STEPS)
def test_spool_survives_crash_after_each_step(path: Path, life: Connection, step: str) -> None:
    life.send(("once", path, step))
    heard = rest_of(life)
    delivered = sorted(i for what, i in heard if what == "delivered")
    with Spool(path, SystemEntropy()) as spool:
        n_waiting, parted = (
            spool.count_waiting(STUDY, 0),
            sorted(chain.from_iterable(released(spool))),
        )
        counts = (n_waiting, len(parted), len(delivered))
        assert (
            counts
            == {
                "putting": (0, 0, 0),
                "put": (10, 0, 0),
                "settling": (10, 0, 0),
                "settled": (0, 10, 0),
                "delivered": (0, 10, 10),
                "dropping": (0, 10, 10),
                "dropped": (0, 0, 10),
            }[step]
        )
        assert (("kept", 10) in heard) == (step != "putting")
        # Nothing but what was acknowledged to its sender is ever there, and all of it leaves in the
        # end.
        assert spool.put([sealed(i) for i in range(10)]) == (
            ["kept"] * 10 if step in ("putting", "dropped") else ["repeated"] * 10
        )


@pytest.mark.parametrize("step", REFUSED_STEPS)
def test_spool_survives_crash_while_batch_is_refused(
    path: Path, life: Connection, step: str
) -> None:
    life.send(("refused", path, step))
    rest_of(life)
    with Spool(path, SystemEntropy()) as spool:
        n_waiting, parted = (
            spool.count_waiting(STUDY, 0),
            sorted(chain.from_iterable(released(spool))),
        )
        everyone, good = list(range(10)), list(range(5))
        expected = {
            "returning": (0, everyone),
            "returned": (5, []),
            "settling again": (5, []),
            "settled again": (0, good),
        }
        assert (n_waiting, parted) == expected[step]
        # It goes on where it was: what is left goes again, by itself.
        spool.put([sealed(20)])
        if step == "returning":
            spool.return_part(STUDY, 0, [packet(i) for i in range(5, 10)])
        spool.make_resend_batch(STUDY, 100)
        assert sorted(chain.from_iterable(released(spool))) == good
        spool.return_part(STUDY, spool.list_parts(STUDY)[0])
        assert spool.make_batch(STUDY, 0, 2, 2, 100) == 5, "they are known to have been shown"


def check_kills(path: Path, life: Connection, entropy: SeededEntropy, n_kills: int) -> None:
    """After each kill, all that was acknowledged is delivered or there, and what was deleted had
    been delivered.
    """
    kept: set[int] = set()
    asked: set[int] = set()
    delivered: Counter[int] = Counter()
    for round_ in range(n_kills):
        life.send(("without_end", path, 10_000 * round_))
        heard = [life.recv() for _ in range(2 + entropy.below(60))]
        os.kill(next(pid for what, pid in heard if what == "born"), signal.SIGKILL)
        for what, i in heard + rest_of(life):
            if what in ("asked", "kept"):
                (asked if what == "asked" else kept).update({i, i + 1, i + 2})
            elif what == "delivered":
                delivered[i] += 1
        with Spool(path, SystemEntropy()) as spool:
            there = [
                number(one)
                for (one,) in spool._db.execute(
                    "SELECT sealed FROM packets WHERE sealed IS NOT NULL"
                )
            ]
            assert len(set(there)) == len(there)
            assert kept <= set(there) | set(delivered), "something is lost"
            assert set(there) | set(delivered) <= asked
            assert spool._db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    # Only a part that was on its way when the process died can have been sent twice.
    assert sum(n - 1 for n in delivered.values()) <= 2 * n_kills
    assert kept


def test_spool_survives_kill_at_any_moment(
    path: Path, life: Connection, entropy: SeededEntropy
) -> None:
    check_kills(path, life, entropy, 8)


@pytest.mark.soak
def test_spool_survives_many_kills(path: Path, life: Connection, entropy: SeededEntropy) -> None:
    check_kills(path, life, entropy, 300)


class Counting(Entropy):
    """Places one after another, as a counter would give them; shuffles are real."""

    def __init__(self, inner: SeededEntropy) -> None:
        self._inner, self._n = inner, 0

    def bytes(self, n: int) -> bytes:
        self._n += 1
        return self._n.to_bytes(n, "big")

    def below(self, bound: int) -> int:
        return self._inner.below(bound)


def order_of_release(path: Path, entropy: Entropy, n: int) -> list[int]:
    with Spool(path, entropy) as spool:
        spool.record_phase(STUDY, 0, WINDOW)
        for i in range(0, n, 50):
            spool.put([sealed(j, most=n) for j in range(i, i + 50)])
        spool.make_batch(STUDY, 0, 1, 1, n)
        return released(spool)[0]


def is_independent(order: list[int], alpha: float) -> bool:
    """Kendall's tau: whether the order of release has nothing to do with that of arrival."""
    return bool(stats.kendalltau(np.arange(len(order)), order).pvalue >= alpha)


@statistical(alpha=3 * ALPHA)
def test_release_order_is_independent_of_arrival_order(
    tmp_path: Path, entropy: SeededEntropy, monkeypatch: pytest.MonkeyPatch
) -> None:
    n, paths = 600, (tmp_path / f"{i}.db" for i in range(10))
    assert is_independent(order_of_release(next(paths), entropy, n), ALPHA)
    # The shuffle alone is enough, and so are the places alone.
    assert is_independent(order_of_release(next(paths), Counting(entropy), n), ALPHA)
    with monkeypatch.context() as patch:
        patch.setattr(module, "shuffle_list", lambda *_: None)
        assert is_independent(order_of_release(next(paths), entropy, n), ALPHA)
        assert catches(
            lambda: is_independent(order_of_release(next(paths), Counting(entropy), n), ALPHA)
        )


@statistical(alpha=ALPHA)
def test_shuffle_makes_all_orders_equally_likely(entropy: SeededEntropy) -> None:
    orders = {order: i for i, order in enumerate(permutations(range(4)))}

    def check(swap: object) -> bool:
        counts = np.zeros(24)
        for _ in range(6_000):
            items = list(range(4))
            swap(items)  # type: ignore[operator]
            counts[orders[tuple(items)]] += 1
        return bool(stats.chisquare(counts).pvalue >= ALPHA)

    def naive(items: list[int]) -> None:
        # The usual mistake: each is swapped with any, and some orders become likelier than others.
        for i in range(4):
            j = entropy.below(4)
            items[i], items[j] = items[j], items[i]

    assert check(lambda items: shuffle_list(items, entropy))
    assert catches(lambda: check(naive))


def offsets(path: Path, n: int) -> list[int]:
    """Where in the file each packet is."""
    data = path.read_bytes()
    found = [data.find(packet(i)[:300]) for i in range(n)]
    assert -1 not in found
    return found


@statistical(alpha=ALPHA)
def test_rewritten_file_does_not_reveal_arrival_order(path: Path, entropy: SeededEntropy) -> None:
    n = 400
    with Spool(path, entropy) as spool:
        for i in range(n):
            spool.put([sealed(i)])
        assert spool.rewrite_sorted() and not spool.rewrite_sorted()
        assert Path(f"{path}-wal").stat().st_size == 0
        assert is_independent(offsets(path, n), ALPHA)


def test_spool_does_not_rewrite_large_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_REWRITE_BYTES", 400)
    with Spool(path, SystemEntropy()) as spool:
        said: list[str] = []
        spool._db.set_trace_callback(said.append)
        spool.put([sealed(0)])
        assert spool.rewrite_sorted() and said[-2:] == ["VACUUM", "PRAGMA wal_checkpoint(TRUNCATE)"]
        spool.put([sealed(1)])
        assert spool.rewrite_sorted() and said[-2:] == ["COMMIT", "PRAGMA wal_checkpoint(TRUNCATE)"]


def test_deleted_packets_are_not_in_file(path: Path) -> None:
    with Spool(path, SystemEntropy()) as spool:
        spool.record_phase(STUDY, 0, WINDOW)
        spool.put([sealed(i) for i in range(1, 40)])
        spool.make_batch(STUDY, 0, 1, 1, 100)
        spool.drop_part(STUDY, 0)
        spool.rewrite_sorted()
        left = b"".join(file.read_bytes() for file in path.parent.iterdir())
        assert not any(packet(i)[:40] in left for i in range(1, 40))


def test_spool_has_no_column_with_time_address_or_counter(path: Path) -> None:
    with Spool(path, SystemEntropy()) as spool:
        columns = [row[1] for row in spool._db.execute("PRAGMA table_info(packets)")]
        assert columns == ["place", "study", "phase", "digest", "part", "is_shown", "sealed"]
        with pytest.raises(sqlite3.OperationalError, match="no such column: rowid"):
            spool._db.execute("SELECT rowid FROM packets")
        assert spool._db.execute("PRAGMA synchronous").fetchone() == (2,)
        assert spool._db.execute("PRAGMA secure_delete").fetchone() == (1,)
        assert spool._db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert list(path.parent.iterdir()) == [path], "the last to close leaves no log"
