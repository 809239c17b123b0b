"""Studies are stepped under leases by any worker, each for itself; what fails is tried again, and what was lost to others is not saved."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from coordinator_cases import NOW, PATIENCE, hosted_of, manifest_of
from shoal.clock import ManualClock
from shoal.coordinator import stepping
from shoal.coordinator.hosting import milliseconds
from shoal.coordinator.publishing import A_DAY, publish
from shoal.coordinator.stepping import Stage, Stepper
from shoal.coordinator.store.base import Ending, Folded, Hosted, Incoming, Loaded
from shoal.coordinator.store.sqlite import SqliteStore
from shoal.coordinator.waiting import Bells
from shoal.entropy import SeededEntropy
from shoal.errors import StoreError


class Shaky(SqliteStore):
    """Fails where it is told to, as often as it is told to; and counts what is saved and tidied."""

    fails: dict[str, int]
    meanwhile: Callable[[], object]
    n_saved = n_tidied = 0

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.fails = {}
        self.meanwhile = lambda: None

    def _maybe(self, what: str) -> None:
        if self.fails.get(what, 0) > 0:
            self.fails[what] -= 1
            raise StoreError("STORE-001", "It is away.")

    def due(self, now: int) -> tuple[str, ...]:
        self._maybe("due")
        return super().due(now)

    def load(self, study: str, now: int, most: int) -> Loaded:
        self._maybe(study)
        loaded = super().load(study, now, most)
        meanwhile, self.meanwhile = self.meanwhile, lambda: None
        meanwhile()
        return loaded

    def save(self, study: str, term: int, folded: Folded) -> bool:
        is_saved = super().save(study, term, folded)
        self.n_saved += is_saved
        return is_saved

    def tidy(self, now: int) -> None:
        self.n_tidied += 1
        super().tidy(now)


class Bench:
    """A store with studies, and a worker."""

    def __init__(self, store: Shaky, clock: ManualClock) -> None:
        self.store, self.clock, self.bells, self.chores, self.ending = store, clock, Bells(lambda _: None), 0, None
        self.stepper = self.worker("one")

    ending: Ending | None

    def worker(self, holder: str) -> Stepper:
        return Stepper(self.store, self.clock, SeededEntropy(1), holder, self.bells, self._devices, self._chores)

    def put(self, name: str) -> str:
        return publish(self.store, manifest_of(name), milliseconds(self.clock.now()), patience=PATIENCE)[0].digest

    async def _devices(self, hosted: Hosted) -> Ending | None:
        return self.ending

    async def _chores(self) -> None:
        self.chores += 1

    def held_until(self, study: str) -> int:
        with self.store._reading() as session:
            ((until,),) = session.rows("SELECT until FROM standing JOIN study ON standing.study = number WHERE digest = ?", study)
        return int(until)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Run the worker until something holds."""
        running = asyncio.create_task(self.stepper.run())
        try:
            async with asyncio.timeout(20):
                while not condition():
                    await asyncio.sleep(0.005)
        finally:
            running.cancel()
            await asyncio.wait([running])
            await self.stepper.finish(5.0)


def run(path: Path, work: Callable[[Bench], Awaitable[None]]) -> None:
    async def main() -> None:
        with Shaky(path / "store.db") as store:
            await work(Bench(store, ManualClock()))

    asyncio.run(main())


def test_what_is_due_is_stepped_and_those_who_wait_are_woken(tmp_path: Path) -> None:
    async def work(bench: Bench) -> None:
        people, holders = bench.put("anonml"), bench.put("pfds")
        mark = bench.bells.mark(people)
        await bench.until(lambda: not bench.store.due(NOW))
        assert bench.bells.mark(people) == mark + 1
        assert (bench.store.latest(people), bench.store.latest(holders)) == (1, 0)
        bench.clock.advance(PATIENCE / 1000)
        await bench.until(lambda: bench.store.study(people) != bench.store.study(holders) and bench.store.latest(holders) == 1)
        ended = bench.store.study(people)
        assert ended is not None
        assert (ended.status, ended.result) == ("failed", None)
        assert ended.reason is not None
        assert ended.reason.startswith("0 answers")

    run(tmp_path, work)


def test_a_study_that_another_worker_steps_is_left_alone(tmp_path: Path) -> None:
    async def work(bench: Bench) -> None:
        study = bench.put("anonml")
        term = bench.store.lease(study, "two", NOW, NOW + 10_000)
        await bench.stepper.step(study)
        assert bench.store.n_saved == 0
        assert term is not None
        bench.clock.advance(11)
        await bench.stepper.step(study)
        assert bench.store.n_saved == 1
        # It was given back when nothing was left to do.
        assert bench.store.lease(study, "two", NOW, NOW + 1) is not None

    run(tmp_path, work)


def test_who_slept_through_a_lease_saves_nothing(tmp_path: Path) -> None:
    async def work(bench: Bench) -> None:
        study = bench.put("anonml")
        term = bench.store.lease(study, "one", NOW, NOW + 10)
        hosted = bench.store.study(study)
        assert term is not None
        assert hosted is not None
        stage = Stage.of(hosted)
        assert stage.aggregator is not None
        bench.store.lease(study, "two", NOW + 20, NOW + 30)
        assert bench.stepper._fold(stage, stage.aggregator, term) is None
        assert bench.store.load(study, NOW, 1).state is None

    run(tmp_path, work)


def test_what_another_worker_has_folded_in_meanwhile_is_not_folded_in_again(tmp_path: Path) -> None:
    async def work(bench: Bench) -> None:
        study = bench.put("anonml")
        bench.store.accept(study, [Incoming("", b"rubbish"), Incoming("", b"more")], 0)
        other = bench.worker("two")

        def asleep() -> None:
            # It sleeps through its lease between load and save, and the other does what was to be done.
            bench.clock.advance(3600)
            asyncio.run(other.step(study))
            assert bench.store.n_saved > 0

        bench.store.meanwhile = asleep
        await bench.stepper.step(study)
        assert bench.store.totals(study).refused == {"MSG-002": 2}
        assert (bench.store.n_saved, bench.store.latest(study)) == (1, 1)

    run(tmp_path, work)


def test_a_study_that_is_closed_during_a_step_stays_closed_and_its_answers_are_late(tmp_path: Path) -> None:
    async def work(bench: Bench) -> None:
        study = bench.put("anonml")
        await bench.stepper.step(study)
        n_saved = bench.store.n_saved
        bench.store.accept(study, [Incoming("", b"rubbish"), Incoming("", b"more")], 0)
        bench.store.meanwhile = lambda: bench.store.end(study, Ending("closed", reason="Enough."))
        await bench.stepper.step(study)
        ended = bench.store.study(study)
        assert ended is not None
        assert (ended.status, ended.reason, bench.store.n_saved) == ("closed", "Enough.", n_saved)
        assert bench.store.totals(study).refused == {"HOST-002": 2}
        assert bench.store.due(milliseconds(bench.clock.now()) + 10**9) == ()

    run(tmp_path, work)


def test_a_lease_is_renewed_while_a_step_takes_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stepping, "LEASE_SECONDS", 0.03)

    async def work(bench: Bench) -> None:
        study = bench.put("anonml")
        term = bench.stepper._lease(study)
        assert term is not None
        keeping = asyncio.create_task(bench.stepper._keep(study, term))
        # Each step takes two thirds of a lease, and so only one that is renewed is held at the end.
        for _ in range(5):
            bench.clock.advance(0.02)
            now = milliseconds(bench.clock.now())
            async with asyncio.timeout(20):
                while bench.held_until(study) < now + 30:
                    await asyncio.sleep(0.005)
            assert bench.store.lease(study, "two", now, now + 30) is None
        keeping.cancel()

    run(tmp_path, work)


def test_a_lease_that_was_given_back_is_not_renewed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stepping, "LEASE_SECONDS", 0.03)

    async def work(bench: Bench) -> None:
        study = bench.put("anonml")
        term = bench.stepper._lease(study)
        assert term is not None
        bench.store.release(study, "one")
        async with asyncio.timeout(20):
            await bench.stepper._keep(study, term)
        now = milliseconds(bench.clock.now())
        assert bench.store.lease(study, "two", now, now + 30) == term + 1

    run(tmp_path, work)


def test_one_study_that_cannot_be_stepped_does_not_stop_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def work(bench: Bench) -> None:
        people, holders = bench.put("anonml"), bench.put("pfds")
        bench.store.fails = {people: 10**6}
        await bench.until(lambda: bench.store.due(NOW) == (people,) and bool(bench.stepper._failures))
        assert bench.store.load(holders, NOW, 1).state is not None
        bench.store.fails = {}
        await bench.until(lambda: bench.store.due(NOW) == () and not bench.stepper._failures)

    run(tmp_path, work)
    told = capsys.readouterr().err.splitlines()
    assert told[0] == f"Study {manifest_of('anonml').short} could not be stepped (STORE-001). It is tried again in 0.5 s."


def test_a_store_that_is_away_is_asked_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def work(bench: Bench) -> None:
        bench.put("anonml")
        bench.store.fails = {"due": 1}
        await bench.until(lambda: bench.store.n_saved == 1)

    run(tmp_path, work)
    assert capsys.readouterr().err == "The store could not be asked what is due (STORE-001). It is tried again in 0.5 s.\n"


def test_an_error_that_is_not_ours_is_told_by_its_kind_alone(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    async def work(bench: Bench) -> None:
        for _ in range(12):
            bench.stepper._put_off("7f" * 32, ValueError("a private value"))

    run(tmp_path, work)
    told = capsys.readouterr().err
    assert "private" not in told
    assert told.splitlines()[-1] == "Study 7f7f-7f7f-7f7f could not be stepped (ValueError). It is tried again in 60 s."


def test_devices_say_when_their_study_ends(tmp_path: Path) -> None:
    async def work(bench: Bench) -> None:
        study = bench.put("ddml")
        await bench.stepper.step(study)
        assert not bench.stepper._is_time(study)
        bench.ending = Ending("done", b"{}")
        mark = bench.bells.mark(study)
        await bench.stepper.step(study)
        ended = bench.store.study(study)
        assert ended is not None
        assert (ended.status, ended.result) == ("done", b"{}")
        assert bench.bells.mark(study) == mark + 1

    run(tmp_path, work)


def test_a_study_that_is_not_there_is_no_error(tmp_path: Path) -> None:
    async def work(bench: Bench) -> None:
        await bench.stepper.step("7f" * 32)

    run(tmp_path, work)


def test_chores_are_done_and_the_store_is_tidied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stepping, "CHORES_SECONDS", 0.0)
    monkeypatch.setattr(stepping, "TIDY_SECONDS", 0.0)

    async def work(bench: Bench) -> None:
        await bench.until(lambda: bench.chores > 0 and bench.store.n_tidied > 0)

    run(tmp_path, work)


def test_a_deadline_waits_for_what_came_before_it_but_not_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stepping, "MOST_AT_ONCE", 2)

    async def work(bench: Bench) -> None:
        study = bench.put("anonml")
        await bench.stepper.step(study)
        hosted = bench.store.study(study)
        assert hosted is not None
        stage = replace(Stage.of(hosted))
        assert stage.aggregator is not None
        term = bench.stepper._lease(study)
        assert term is not None

        def flood() -> Folded | None:
            bench.store.accept(study, [Incoming("", b"rubbish"), Incoming("", b"rubbish")], 0)
            assert stage.aggregator is not None
            return bench.stepper._fold(stage, stage.aggregator, term)

        bench.clock.advance(PATIENCE / 1000)
        folded = flood()
        assert folded is not None
        assert folded.rung == ()
        bench.clock.advance(61)
        folded = flood()
        assert folded is not None
        assert folded.rung == (NOW + PATIENCE,)

    run(tmp_path, work)


def test_a_study_that_is_not_over_when_it_closes_has_failed(tmp_path: Path) -> None:
    async def work(bench: Bench) -> None:
        manifest = manifest_of("sdq", closes="2030-01-02T00:00:00Z")
        # Steps that take their time one after the other: each by itself would be in time.
        hosted = replace(hosted_of("sdq", patience=10 * A_DAY), digest=manifest.digest.hex(), manifest=manifest.to_bytes())
        bench.store.publish(hosted)
        await bench.stepper.step(hosted.digest)
        end = NOW + A_DAY + 2 * stepping.GRACE_MILLISECONDS
        assert bench.store.due(end - 1) == ()
        bench.clock.advance((end - NOW) / 1000)
        assert bench.store.due(end) == (hosted.digest,)
        await bench.stepper.step(hosted.digest)
        ended = bench.store.study(hosted.digest)
        assert ended is not None
        assert (ended.status, ended.reason) == ("failed", "The study closed before it was complete. What was sent is spent.")

    run(tmp_path, work)


def test_a_study_that_ends_by_itself_when_it_closes_ends_so() -> None:
    done = Folded(b"", ending=Ending("done", b"{}"))
    assert stepping.until(5, done, 9, is_new=False) == done
    assert stepping.until(5, Folded(b""), 4, is_new=False).alarms == ()
    assert stepping.until(5, Folded(b"", alarms=(9, 2)), 4, is_new=True).alarms == (2, 5, 9)
