"""The scheduler: leases, retries, and steps that lose their lease."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.clock import ManualClock, to_milliseconds
from shoal.coordinator import scheduler
from shoal.coordinator.mailbox import ChangeNotifier
from shoal.coordinator.publishing import DAY_MILLISECONDS
from shoal.coordinator.scheduler import CachedStudy, SchedulerHooks, StudyScheduler
from shoal.coordinator.store.base import (
    StepResult,
    StudyOutcome,
    StudyRecord,
    StudySnapshot,
    Submission,
    do_not_wait,
)
from shoal.coordinator.store.sqlite import SqliteStore
from shoal.coordinator.studies import StudyHandles
from shoal.entropy import SeededEntropy
from shoal.errors import StoreError
from shoal.study.handle import StudyHandle
from shoal.study.manifest import Manifest
from tests.support.coordinator import NOW, PATIENCE, make_manifest, make_record, publish_manifest


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

    def list_due(self, now: int) -> tuple[str, ...]:
        self._maybe("due")
        return super().list_due(now)

    def load(self, study: str, now: int, most: int) -> StudySnapshot:
        self._maybe(study)
        loaded = super().load(study, now, most)
        meanwhile, self.meanwhile = self.meanwhile, lambda: None
        meanwhile()
        return loaded

    def save(self, study: str, term: int, result: StepResult) -> bool:
        is_saved = super().save(study, term, result)
        self.n_saved += is_saved
        return is_saved

    def tidy(self, now: int, wait: Callable[[float], bool] = do_not_wait) -> None:
        self.n_tidied += 1
        super().tidy(now, wait)


class Bench:
    """A store with studies, and a worker."""

    def __init__(self, store: Shaky, clock: ManualClock) -> None:
        self.store, self.clock, self.notifier, self.chores, self.ending = (
            store,
            clock,
            ChangeNotifier(lambda _: None),
            0,
            None,
        )
        self.scheduler = self.worker("one")

    ending: StudyOutcome | None

    def worker(self, holder: str) -> StudyScheduler:
        return StudyScheduler(
            self.store,
            StudyHandles(),
            self.clock,
            SeededEntropy(1),
            holder,
            self.notifier,
            SchedulerHooks(self._devices, self._chores),
        )

    def put(self, name: str) -> str:
        return publish_manifest(
            self.store,
            make_manifest(name),
            to_milliseconds(self.clock.now()),
            phase_timeout=PATIENCE,
        )[0].digest

    async def _devices(self, record: StudyRecord) -> StudyOutcome | None:
        return self.ending

    async def _chores(self) -> None:
        self.chores += 1

    def held_until(self, study: str) -> int:
        with self.store._read_transaction() as session:
            ((until,),) = session.fetch_rows(
                "SELECT until FROM standing JOIN study ON standing.study = number WHERE digest = ?",
                study,
            )
        return int(until)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Run the worker until something holds."""
        running = asyncio.create_task(self.scheduler.run())
        try:
            async with asyncio.timeout(20):
                while not condition():
                    await asyncio.sleep(0.005)
        finally:
            running.cancel()
            await asyncio.wait([running])
            await self.scheduler.finish(5.0)


def run(path: Path, work: Callable[[Bench], Awaitable[None]]) -> None:
    async def main() -> None:
        with Shaky(path / "store.db") as store:
            await work(Bench(store, ManualClock()))

    asyncio.run(main())


def test_scheduler_steps_due_studies_and_wakes_readers(tmp_path: Path) -> None:
    async def work(bench: Bench) -> None:
        people, holders = bench.put("anonml"), bench.put("pfds")
        mark = bench.notifier.version(people)
        await bench.until(lambda: not bench.store.list_due(NOW))
        assert bench.notifier.version(people) == mark + 1
        assert (bench.store.find_last_number(people), bench.store.find_last_number(holders)) == (
            1,
            0,
        )
        bench.clock.advance(PATIENCE / 1000)
        await bench.until(
            lambda: (
                bench.store.find_study(people) != bench.store.find_study(holders)
                and bench.store.find_last_number(holders) == 1
            )
        )
        ended = bench.store.find_study(people)
        assert ended is not None
        assert (ended.status, ended.result) == ("failed", None)
        assert ended.reason is not None
        assert ended.reason.startswith("0 answers")

    run(tmp_path, work)


def test_scheduler_skips_study_leased_by_other_worker(tmp_path: Path) -> None:
    async def work(bench: Bench) -> None:
        study = bench.put("anonml")
        term = bench.store.lease(study, "two", NOW, NOW + 10_000)
        await bench.scheduler.run_due(study)
        assert bench.store.n_saved == 0
        assert term is not None
        bench.clock.advance(11)
        await bench.scheduler.run_due(study)
        assert bench.store.n_saved == 1
        # It was given back when nothing was left to do.
        assert bench.store.lease(study, "two", NOW, NOW + 1) is not None

    run(tmp_path, work)


def test_worker_with_expired_lease_saves_nothing(tmp_path: Path) -> None:
    async def work(bench: Bench) -> None:
        study = bench.put("anonml")
        term = bench.store.lease(study, "one", NOW, NOW + 10)
        record = bench.store.find_study(study)
        assert term is not None
        assert record is not None
        stage = CachedStudy.from_record(record, StudyHandle(Manifest.from_bytes(record.manifest)))
        assert stage.aggregator is not None
        bench.store.lease(study, "two", NOW + 20, NOW + 30)
        assert bench.scheduler._run_batch(stage, stage.aggregator, term) is None
        assert bench.store.load(study, NOW, 1).state is None

    run(tmp_path, work)


def test_input_applied_by_other_worker_is_not_applied_again(tmp_path: Path) -> None:
    async def work(bench: Bench) -> None:
        study = bench.put("anonml")
        bench.store.accept(study, [Submission("", b"rubbish"), Submission("", b"more")], 0)
        other = bench.worker("two")

        def asleep() -> None:
            # It sleeps through its lease between load and save, and the other does what was to be
            # done.
            bench.clock.advance(3600)
            asyncio.run(other.run_due(study))
            assert bench.store.n_saved > 0

        bench.store.meanwhile = asleep
        await bench.scheduler.run_due(study)
        assert bench.store.count_totals(study).refused == {"MSG-002": 2}
        assert (bench.store.n_saved, bench.store.find_last_number(study)) == (1, 1)

    run(tmp_path, work)


def test_study_closed_during_step_stays_closed(
    tmp_path: Path,
) -> None:
    async def work(bench: Bench) -> None:
        study = bench.put("anonml")
        await bench.scheduler.run_due(study)
        n_saved = bench.store.n_saved
        bench.store.accept(study, [Submission("", b"rubbish"), Submission("", b"more")], 0)
        bench.store.meanwhile = lambda: bench.store.end(
            study, StudyOutcome("closed", reason="Enough.")
        )
        await bench.scheduler.run_due(study)
        ended = bench.store.find_study(study)
        assert ended is not None
        assert (ended.status, ended.reason, bench.store.n_saved) == ("closed", "Enough.", n_saved)
        assert bench.store.count_totals(study).refused == {"HOST-002": 2}
        assert bench.store.list_due(to_milliseconds(bench.clock.now()) + 10**9) == ()

    run(tmp_path, work)


def test_lease_is_renewed_during_long_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "LEASE_SECONDS", 0.03)

    async def work(bench: Bench) -> None:
        study = bench.put("anonml")
        term = bench.scheduler._take_lease(study)
        assert term is not None
        keeping = asyncio.create_task(bench.scheduler._keep_lease(study, term))
        # Each step takes two thirds of a lease, and so only one that is renewed is held at the end.
        for _ in range(5):
            bench.clock.advance(0.02)
            now = to_milliseconds(bench.clock.now())
            async with asyncio.timeout(20):
                while bench.held_until(study) < now + 30:
                    await asyncio.sleep(0.005)
            assert bench.store.lease(study, "two", now, now + 30) is None
        keeping.cancel()

    run(tmp_path, work)


def test_released_lease_is_not_renewed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "LEASE_SECONDS", 0.03)

    async def work(bench: Bench) -> None:
        study = bench.put("anonml")
        term = bench.scheduler._take_lease(study)
        assert term is not None
        bench.store.release(study, "one")
        async with asyncio.timeout(20):
            await bench.scheduler._keep_lease(study, term)
        now = to_milliseconds(bench.clock.now())
        assert bench.store.lease(study, "two", now, now + 30) == term + 1

    run(tmp_path, work)


def test_failing_study_does_not_stop_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def work(bench: Bench) -> None:
        people, holders = bench.put("anonml"), bench.put("pfds")
        bench.store.fails = {people: 10**6}
        await bench.until(
            lambda: bench.store.list_due(NOW) == (people,) and bool(bench.scheduler._failures)
        )
        assert bench.store.load(holders, NOW, 1).state is not None
        bench.store.fails = {}
        await bench.until(lambda: bench.store.list_due(NOW) == () and not bench.scheduler._failures)

    run(tmp_path, work)
    told = capsys.readouterr().err.splitlines()
    short = make_manifest("anonml").short_digest
    assert told[0] == f"Study {short} could not be stepped (STORE-001). Retrying in 0.5 s."


def test_scheduler_retries_unavailable_store(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def work(bench: Bench) -> None:
        bench.put("anonml")
        bench.store.fails = {"due": 1}
        await bench.until(lambda: bench.store.n_saved == 1)

    run(tmp_path, work)
    assert (
        capsys.readouterr().err
        == "The store could not be queried for due studies (STORE-001). Retrying in 0.5 s.\n"
    )


def test_foreign_error_is_printed_by_type_only(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    async def work(bench: Bench) -> None:
        for _ in range(12):
            bench.scheduler._back_off("7f" * 32, ValueError("a private value"))

    run(tmp_path, work)
    told = capsys.readouterr().err
    assert "private" not in told
    assert (
        told.splitlines()[-1]
        == "Study 7f7f-7f7f-7f7f could not be stepped (ValueError). Retrying in 60 s."
    )


def test_ddml_study_ends_by_its_hook(tmp_path: Path) -> None:
    async def work(bench: Bench) -> None:
        study = bench.put("ddml")
        await bench.scheduler.run_due(study)
        assert not bench.scheduler._is_time(study)
        bench.ending = StudyOutcome("done", b"{}")
        mark = bench.notifier.version(study)
        await bench.scheduler.run_due(study)
        ended = bench.store.find_study(study)
        assert ended is not None
        assert (ended.status, ended.result) == ("done", b"{}")
        assert bench.notifier.version(study) == mark + 1

    run(tmp_path, work)


def test_unknown_study_is_ignored(tmp_path: Path) -> None:
    async def work(bench: Bench) -> None:
        await bench.scheduler.run_due("7f" * 32)

    run(tmp_path, work)


def test_scheduler_runs_chores_and_tidies_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "CHORES_SECONDS", 0.0)
    monkeypatch.setattr(scheduler, "TIDY_SECONDS", 0.0)

    async def work(bench: Bench) -> None:
        await bench.until(lambda: bench.chores > 0 and bench.store.n_tidied > 0)

    run(tmp_path, work)


def test_deadline_waits_for_earlier_messages_up_to_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "MOST_AT_ONCE", 2)

    async def work(bench: Bench) -> None:
        study = bench.put("anonml")
        await bench.scheduler.run_due(study)
        record = bench.store.find_study(study)
        assert record is not None
        stage = replace(
            CachedStudy.from_record(record, StudyHandle(Manifest.from_bytes(record.manifest)))
        )
        assert stage.aggregator is not None
        term = bench.scheduler._take_lease(study)
        assert term is not None

        def flood() -> StepResult | None:
            bench.store.accept(study, [Submission("", b"rubbish"), Submission("", b"rubbish")], 0)
            assert stage.aggregator is not None
            return bench.scheduler._run_batch(stage, stage.aggregator, term)

        bench.clock.advance(PATIENCE / 1000)
        folded = flood()
        assert folded is not None
        assert folded.fired_alarms == ()
        bench.clock.advance(61)
        folded = flood()
        assert folded is not None
        assert folded.fired_alarms == (NOW + PATIENCE,)

    run(tmp_path, work)


def test_study_open_at_closing_time_fails(tmp_path: Path) -> None:
    async def work(bench: Bench) -> None:
        manifest = make_manifest("sdq", closes="2030-01-02T00:00:00Z")
        # Steps that take their time one after the other: each by itself would be in time.
        record = replace(
            make_record("sdq", phase_timeout=10 * DAY_MILLISECONDS),
            digest=manifest.digest.hex(),
            manifest=manifest.to_bytes(),
        )
        bench.store.publish(record)
        await bench.scheduler.run_due(record.digest)
        end = NOW + DAY_MILLISECONDS + 2 * scheduler.GRACE_MILLISECONDS
        assert bench.store.list_due(end - 1) == ()
        bench.clock.advance((end - NOW) / 1000)
        assert bench.store.list_due(end) == (record.digest,)
        await bench.scheduler.run_due(record.digest)
        ended = bench.store.find_study(record.digest)
        assert ended is not None
        assert (ended.status, ended.reason) == (
            "failed",
            "The study closed before it was complete. Answers that were sent stay spent.",
        )

    run(tmp_path, work)


def test_study_that_ends_at_closing_time_keeps_its_outcome() -> None:
    done = StepResult(b"", outcome=StudyOutcome("done", b"{}"))
    assert scheduler.apply_deadline(5, done, 9, is_new=False) == done
    assert scheduler.apply_deadline(5, StepResult(b""), 4, is_new=False).alarms == ()
    assert scheduler.apply_deadline(5, StepResult(b"", alarms=(9, 2)), 4, is_new=True).alarms == (
        2,
        5,
        9,
    )
