"""A coordinator that steers reads and windows links packets to keys no better than by guessing."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from shoal.attacks.timing import bound_chance_hits, guess_keys
from shoal.cli.fleet import FleetSettings, run_fleet
from shoal.clock import SystemClock
from shoal.entropy import SystemEntropy
from shoal.participant.driver import ParticipationResult
from shoal.study.manifest import Manifest
from tests.e2e.active import Attack, attacking, socks_proxy
from tests.e2e.anonymous import TooSlowError, read_sent_packets, run_with_retries
from tests.statistical.harness import statistical
from tests.support.participants import compute_packet_size, make_study, make_table
from tests.support.servers import Participant

N_STUDIES, N = 10, 20
WINDOW = 32.0
N_RUNS = 3
ALPHA = 5e-8
"""A Poisson number of mean 10 exceeds 19 with a chance of 0.0035; here three times in a row."""


def attack(home: Path, window: float, *, over_socks: bool) -> int:
    """Run the attack on ten studies at the same time; return how many packets it has linked."""
    drafts = [
        Manifest(
            make_study(
                "anonml",
                N,
                title=f"Study {i}",
                participation={"minimum": N // 2, "size": N + 1},
            )
        )
        for i in range(N_STUDIES)
    ]
    with ExitStack() as stack:
        found = stack.enter_context(attacking(f"sqlite:{home / 'study.db'}", drafts, window))
        via = f"tor:127.0.0.1:{stack.enter_context(socks_proxy())}" if over_socks else None
        asyncio.run(take_part(home, found, via))
    return sum(count_linked(home, found, manifest) for manifest in found.manifests)


async def take_part(home: Path, found: Attack, via: str | None) -> None:
    """Run all participants of all studies until they end."""

    async def one(manifest: Manifest) -> None:
        digest = manifest.digest.hex()
        settings = FleetSettings(found.url, home / digest, SystemClock(), SystemEntropy(), via=via)
        ended = await run_fleet(settings, make_table(N, digest), N, study=digest)
        if not all(map(is_finished, ended.values())):
            raise TooSlowError(f"{sum(map(is_finished, ended.values()))} of {N} have finished")

    try:
        async with asyncio.TaskGroup() as group:
            for manifest in found.manifests:
                group.create_task(one(manifest))
    except* TooSlowError as error:
        raise error.exceptions[0] from None


def is_finished(end: object) -> bool:
    return isinstance(end, ParticipationResult) and end.status == "finished"


def count_linked(home: Path, found: Attack, manifest: Manifest) -> int:
    """Return how many packets of a study the coordinator gives to the right key."""
    digest, size = manifest.digest.hex(), compute_packet_size(manifest)
    people = [Participant(home / digest, f"participant-{i:05d}") for i in range(N)]
    truth = {
        one.packet.to_bytes(size): one.key.hex() for one in read_sent_packets(people, manifest)
    }
    log = found.hostile.logs[digest]
    if len(log.packets) < N or len(log.served) < N:
        raise TooSlowError(f"{len(log.packets)} of {N} packets came")
    assert set(log.packets) == set(truth), "the same bytes at every attempt"
    window = manifest.schedule.get_window(0)  # type: ignore[union-attr]
    times = list(log.packets.values())
    assert min(times) >= window.sends_from.timestamp(), "no window but the manifest's counts"
    # A person who sends soon after the question would be found.
    hasty = guess_keys(log.served, [one.time + 1e-6 for one in log.served])
    assert hasty == [one.key for one in log.served]
    guesses = guess_keys(log.served, times)
    return sum(guess == truth[packet] for guess, packet in zip(guesses, log.packets, strict=True))


@statistical(alpha=ALPHA)
@pytest.mark.parametrize(
    "over_socks", [False, pytest.param(True, marks=pytest.mark.soak)], ids=["direct", "socks"]
)
def test_serving_one_key_at_a_time_links_no_more_packets_than_chance(over_socks: bool) -> None:
    linked: list[int] = []
    while len(linked) < N_RUNS and (not linked or linked[-1] > bound_chance_hits(N_STUDIES)):
        linked.append(run_with_retries(partial(attack, over_socks=over_socks), WINDOW))
    print(f"linked {linked} of {N_STUDIES * N}")
    assert linked[-1] <= bound_chance_hits(N_STUDIES)
