"""Times and sizes of batches, without losses, on a real coordinator and a manual clock."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import pytest

from shoal.entropy import SystemEntropy
from shoal.relay import batches
from shoal.relay.batches import FIRST_WAIT, BatchReleaser
from shoal.relay.spool import Spool
from shoal.study.delivery import compute_min_batch
from shoal.transport.api import BatchReceipt, Problem, study_route, to_cbor, to_json
from tests.support.relay import scene

SHUFFLED = {
    "trust": "shuffled",
    "privacy": {"epsilon": 2.0, "delta": 1e-6},
    "participation": {"minimum": 3, "size": 20, "honest_share": 1.0},
}


def test_releaser_sends_batch_after_collection_and_after_resends(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path) as s:
            for i in range(4):
                assert (await s.post(s.sealed(i))).status_code == 202
            await s.until(799)
            assert s.wire.batches() == [] and await s.totals() == (0, {})
            await s.until(800)
            assert [len(batch) for batch in s.wire.batches()] == [4]
            assert await s.totals() == (4, {})
            for i in range(4, 8):
                assert (await s.post(s.sealed(i))).status_code == 202
            await s.until(899)
            assert len(s.wire.batches()) == 1
            await s.until(900)
            assert [len(batch) for batch in s.wire.batches()] == [4, 4]
            assert await s.totals() == (8, {})
            assert s.spool.count_waiting(s.digest, 0) == 0 and s.spool.list_parts(s.digest) == ()

    asyncio.run(main())


def test_releaser_deletes_too_few_packets_after_phase(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path, n=4) as s:
            for i in range(3):
                await s.post(s.sealed(i))
            for seconds in (800, 900, 999):
                await s.until(seconds)
                assert (s.spool.count_waiting(s.digest, 0), s.wire.batches()) == (3, [])
            await s.releasing.run_due()
            s.clock.advance(1)
            await s.releasing.run_due()
            assert s.spool.count_waiting(s.digest, 0) == 0 and s.wire.batches() == []

    asyncio.run(main())


def test_releaser_adds_too_few_packets_to_second_batch(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path, n=4) as s:
            for i in range(3):
                await s.post(s.sealed(i))
            await s.until(800)
            await s.post(s.sealed(3))
            await s.until(900)
            assert [len(batch) for batch in s.wire.batches()] == [4]
            assert await s.totals() == (4, {})

    asyncio.run(main())


def test_releaser_sends_one_batch_after_downtime(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path) as s:
            for i in range(4):
                await s.post(s.sealed(i))
            s.spool.close()
            s.clock.advance(950)
            with Spool(s.spool.path, SystemEntropy()) as spool:
                again = BatchReleaser(s.following, s.remote, spool, s.clock)
                await again.run_due()
                await again.run_due()
            assert [len(batch) for batch in s.wire.batches()] == [4]
            assert await s.totals() == (4, {})

    asyncio.run(main())


@pytest.mark.parametrize("fault", ["is_cut", "loses_answers"])
def test_releaser_resends_part_until_acknowledged(tmp_path: Path, fault: str) -> None:
    async def main() -> None:
        async with scene(tmp_path) as s:
            for i in range(3):
                await s.post(s.sealed(i))
            await s.following.poll()
            setattr(s.wire, fault, True)
            s.clock.advance(800)
            await s.releasing.run_due()
            assert len(s.spool.read_part(s.digest, 0)) == 3, "it is noted, and not gone"
            n_tries = len(s.wire.batches())
            await s.releasing.run_due()
            assert len(s.wire.batches()) == n_tries, "not at once again"
            setattr(s.wire, fault, False)
            s.clock.advance(FIRST_WAIT.total_seconds())
            await s.releasing.run_due()
            assert s.spool.list_parts(s.digest) == ()
            assert await s.totals() == (3, {}), "what came twice counts once"

    asyncio.run(main())


def test_releaser_doubles_pauses_up_to_limit(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path) as s:
            for i in range(3):
                await s.post(s.sealed(i))
            s.wire.is_cut = True
            s.clock.advance(800)
            tries = []
            for _ in range(200):
                before = s.releasing._retry_times.get(s.digest)
                await s.releasing.run_due()
                if s.releasing._retry_times[s.digest] != before:
                    tries.append(s.clock.now())
                s.clock.advance(1)
            gaps = [(b - a).total_seconds() for a, b in pairwise(tries)]
            assert gaps == [1, 2, 4, 8, 16] + [30] * (len(gaps) - 5) and len(gaps) > 6

    asyncio.run(main())


def test_releaser_splits_large_batch_after_one_shuffle(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path) as s:
            sent = [s.sealed(i) for i in range(10)]
            for one in sent:
                await s.post(one)
            s.followed.max_in_part = 4
            await s.until(800)
            assert sorted(len(batch) for batch in s.wire.batches()) == [3, 3, 4]
            assert sorted(one for batch in s.wire.batches() for one in batch) == sorted(sent)
            assert await s.totals() == (10, {})

    asyncio.run(main())


def test_invalid_packets_do_not_count_towards_minimum(tmp_path: Path) -> None:
    """With trust shuffled the coordinator refuses a batch in which too few packets are valid: they
    wait for others who are enough.
    """

    async def main() -> None:
        async with scene(tmp_path, **SHUFFLED) as s:
            rubbish = [bytes([i]) * s.followed.sealed_size for i in (1, 2)]
            good = s.sealed(0)
            for one in [good, *rubbish]:
                assert (await s.post(one)).status_code == 202
            await s.until(800)
            # What is left without the rubbish is sent again, and does not stay enough by that.
            await s.step()
            assert [sorted(batch) for batch in s.wire.batches()] == [
                sorted([good, *rubbish]),
                [good],
            ]
            await s.step()
            assert (
                len(s.wire.batches()) == 2
                and (await s.totals())[0] == 0
                and s.spool.count_waiting(s.digest, 0) == 1
            )
            for i in (1, 2, 3):
                await s.post(s.sealed(i))
            await s.until(900)
            assert [len(batch) for batch in s.wire.batches()] == [3, 1, 4]
            accepted, refused = await s.totals()
            assert accepted == 4 and set(refused) == {"MSG-005", "PROTO-003"}

    asyncio.run(main())


def test_invalid_packets_and_copies_do_not_block_valid_packets(tmp_path: Path) -> None:
    """A batch is cut into parts, of which each has too few valid packets. Without what is in the
    way they are one that is large enough.
    """

    async def main() -> None:
        async with scene(tmp_path, **SHUFFLED) as s:
            rubbish = [bytes([i]) * s.followed.sealed_size for i in range(1, 9)]
            sent = [s.sealed(i) for i in range(4)]
            copies = [s.sealed(0) for _ in range(4)]
            for one in [*sent, *rubbish, *copies]:
                assert (await s.post(one)).status_code == 202
            s.followed.max_in_part = 5
            view = await s.service.get_study(s.digest)
            (await s.service.submissions._open_packet_intake(view))._min_valid = 4
            await s.until(800)
            for _ in range(6):
                await s.step()
            # A copy may be left over whose original is in: it waits in vain, and keeps nobody out.
            n_left = s.spool.count_waiting(s.digest, 0)
            assert (await s.totals())[0] == 4 and n_left <= 1
            assert len(s.wire.batches()[-1]) in ((1,) if n_left else (4, 5))

    asyncio.run(main())


@pytest.mark.parametrize("how", ["refuses it", "calls all of it rubbish", "takes it"])
def test_resent_batch_does_not_contain_later_packets(tmp_path: Path, how: str) -> None:
    """It reads the first batch, says what it likes, tells everyone that nothing has arrived, and
    compares it with the second batch.
    """

    async def main() -> None:
        async with scene(tmp_path) as s:
            first = [s.sealed(i) for i in range(4)]
            for one in first:
                await s.post(one)
            s.wire.says = {
                "refuses it": (400, to_json(Problem(title="No.", status=400, code="MSG-005"))),
                "calls all of it rubbish": (
                    200,
                    to_cbor(BatchReceipt(taken=None, invalid=(0, 1, 2, 3))),
                ),
                "takes it": (200, to_cbor(BatchReceipt(taken=4))),
            }[how]
            await s.until(800)
            await s.step()
            for one in [*first, s.sealed(7), s.sealed(8)]:
                assert (await s.post(one)).status_code == 202
            await s.until(900)
            await s.step()
            assert {one for batch in s.wire.batches() for one in batch} == set(first)
            assert len(s.wire.batches()) == 2

    asyncio.run(main())


def test_packet_after_resend_time_is_for_next_phase(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path) as s:
            await s.until(899)
            await s.post(s.sealed(0))
            s.clock.advance(1)
            await s.post(s.sealed(1))
            assert (s.spool.count_waiting(s.digest, 0), s.spool.count_waiting(s.digest, 1)) == (
                1,
                1,
            )
            s.clock.advance(200)
            await s.releasing.run_due()
            assert (s.spool.count_waiting(s.digest, 0), s.spool.count_waiting(s.digest, 1)) == (
                0,
                1,
            )

    asyncio.run(main())


def test_releaser_drops_packets_of_ended_study(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path) as s:
            await s.post(s.sealed(0))
            await s.service.close_study(s.digest)
            await s.following.poll()
            assert s.following.studies == {} and s.spool.list_studies() == ()
            assert (await s.post(s.sealed(1))).status_code == 404
            await s.releasing.run_due()
            assert s.wire.batches() == []

    asyncio.run(main())


def test_releaser_sends_nothing_but_packets(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path) as s:
            for i in range(3):
                s.http.headers["x-forwarded-for"] = f"192.0.2.{i}"
                s.http.headers["user-agent"] = f"participant {i}"
                await s.post(s.sealed(i))
            await s.until(800)
            route = study_route(s.digest, "batches")
            sent = next(one for one in s.wire.requests if one.url.path == route)
            assert {name.lower() for name in sent.headers} == {
                "host", "user-agent", "accept", "accept-encoding", "content-type", "content-length"
            }  # fmt: skip
            assert all(one.headers["user-agent"] == "shoal" for one in s.wire.requests)

    asyncio.run(main())


def test_releaser_uses_minimum_of_phase(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with scene(tmp_path) as s:
            asked = []

            def least(manifest: object, phase: int, _script: object) -> int:
                asked.append((manifest == s.manifest, phase))
                return 5

            monkeypatch.setattr(batches, "compute_min_batch", least)
            for i in range(4):
                await s.post(s.sealed(i))
            await s.until(800)
            assert asked == [(True, 0)] and s.wire.batches() == []
            s.clock.advance(timedelta(seconds=50).total_seconds())
            await s.post(s.sealed(4))
            await s.until(900)
            assert [len(batch) for batch in s.wire.batches()] == [5]

    asyncio.run(main())


def test_releaser_sends_separate_batches_for_each_phase(tmp_path: Path) -> None:
    """What comes after the end of resends is in the next phase's batch. What it says is for the
    coordinator to see.
    """

    async def main() -> None:
        cuts = [
            {"name": "heat", "range": [0, 40], "missing": False},
            {"name": "wind", "values": ["weak", "strong"], "missing": False},
        ]
        async with scene(tmp_path, n=1_500, feature=cuts) as s:
            size, least = (
                s.followed.sealed_size,
                [compute_min_batch(s.manifest, phase) for phase in (0, 1)],
            )
            assert len(s.followed.phases) > 2 and 1 < least[1] < 100
            for i in range(least[0]):
                await s.post(i.to_bytes(size, "little"))
            await s.until(950)
            assert [len(batch) for batch in s.wire.batches()] == [least[0]]
            early = sorted((1000 + i).to_bytes(size, "little") for i in range(least[1]))
            for one in early[1:]:
                await s.post(one)
            s.clock.advance(100)
            s.service._scheduler.wake()
            await s.service.mailbox.fetch(s.digest, None, 1, 10)
            await s.post(early[0])
            await s.step()
            assert sorted(s.followed.asks) == [0, 1]
            assert s.spool.count_waiting(s.digest, 1) == least[1]
            await s.until(799)
            assert len(s.wire.batches()) == 1
            await s.until(800)
            assert sorted(s.wire.batches()[1]) == early

    asyncio.run(main())
