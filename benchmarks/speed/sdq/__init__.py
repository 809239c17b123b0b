"""Cost of a secure sum of 10,000 counts for a member: processor time and bytes.

It is compared with MPyC's sum and Flower's masks. *member* is all work of a member in a round, from
bytes to bytes: signatures, boxes, shares, masks, the list of survivors, encoding and decoding.
*noise* is its share of the noise, drawn at epsilon 0.1 if three of ten may collude; *both* is the
sum of the two. *collector* is the collector's time for the whole round. Members drop out after
dealing, which costs most.

``all_needed``: t = N, no member may drop out. ``all_stay``: the largest permitted number may drop
out if three of ten collude, and none does. ``most_gone``: all that may drop out do. A figure is
that of the median member, in the best of some rounds after one warm-up; ``typical`` is the median
round. ``library`` is the time of the necessary calls of the cryptographic library alone, in the
same run.

Of 1,000 members, a single member is run while the messages of the others are forged. All 1,000
members of a whole round, with the sum checked and the collector timed, run with ``--only whole``,
which takes long because they run in turn.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from benchmarks.competitors.environments import HERE, make_environment, run_script
from benchmarks.measure import Measure, rate, table
from benchmarks.speed.sdq.rounds import SIZE, Meter, Parties, Round, least, lone_member
from shoal.crypto.hpke import open_boxes, seal
from shoal.crypto.identity import Identity, Roster
from shoal.crypto.secagg.context import RoundContext
from shoal.crypto.secagg.key_agreement import add_masks, derive_public_key
from shoal.crypto.secagg.key_shares import derive_public_keys, draw_secrets
from shoal.crypto.secagg.masking import mask_vector
from shoal.entropy import SystemEntropy

BENCH = "sdq-speed"
ROUNDS = {10: 30, 100: 3}
TARGETS = {10: 8.0, 100: 80.0}
"""Milliseconds of a member's processor time."""
N_CROWD, N_LONE = 1_000, 3
N_AGAINST, TIMES_MPYC = 20, 20
"""Rounds that are compared with MPyC, and the target factor."""
_COLUMNS = (
    "member_{}",
    "member_{}_typical",
    "library_{}",
    "noise_{}",
    "both_{}",
    "collector_{}",
    "sent_{}",
    "received_{}",
)


def measures(only: str = "") -> Iterator[Measure]:
    """Yield all parts, or those with a text in their names.

    The parts are rounds, crowd, mpyc and flower; whole runs only if it is named.
    """
    parts: dict[str, Callable[[], Iterator[Measure]]] = {
        "rounds": _rounds,
        "crowd": _crowd,
        "mpyc": _mpyc,
        "flower": _flower,
    }
    for name, part in parts.items():
        if only in name:
            yield from part()
    if only == "whole":
        yield from _figures(f"{N_CROWD}_whole", [_play_round(Parties(N_CROWD, least(N_CROWD)), 0)])


def markdown(only: str = "") -> Iterator[str]:
    """Yield a row for each case of a round, then all other figures."""
    found = {one.measure: one for one in measures(only)}
    cases = [
        name.removeprefix("member_")
        for name in found
        if name.startswith("member_") and not name.endswith("_typical")
    ]
    if cases:
        yield (
            "| members, case | member, ms | typical, ms | library, ms | noise, ms | both, ms | "
            "collector, ms | sent, kB | received, kB |"
        )
        yield "|---|" + "---:|" * len(_COLUMNS)
    for case in cases:
        row = [found.pop(column.format(case), None) for column in _COLUMNS]
        yield (
            f"| {case.replace('_', ' ')} | "
            f"{' | '.join('' if one is None else f'{one.value:,.4g}' for one in row)} |"
        )
    yield ""
    yield from table(iter(found.values()))


def _cases(n: int) -> dict[str, tuple[int, int]]:
    """Return the threshold and the number of members that drop out."""
    return {"all_needed": (n, 0), "all_stay": (least(n), 0), "most_gone": (least(n), n - least(n))}


def _rounds() -> Iterator[Measure]:
    for n, n_rounds in ROUNDS.items():
        for case, (threshold, n_gone) in _cases(n).items():
            parties = Parties(n, threshold)
            # Alternate, so that a slow phase of the machine affects both.
            turns = [
                (_play_round(parties, n_gone), library_ms(n, threshold))
                for _ in range(n_rounds + 1)
            ][1:]
            rounds, library = zip(*turns, strict=True)
            yield from _figures(f"{n}_{case}", rounds, TARGETS[n])
            yield Measure(BENCH, f"library_{n}_{case}", min(library), "ms", "lower")


def _play_round(parties: Parties, n_gone: int) -> Round:
    played = Round(parties, SystemEntropy(), n_gone)
    played.play()
    return played


def _figures(name: str, rounds: Sequence[Round], target: float | None = None) -> Iterator[Measure]:
    times = [_times(list(one.staying)) for one in rounds]
    yield from _member(name, times, target)
    yield Measure(
        BENCH,
        f"collector_{name}",
        min(one.collector_meter.ns for one in rounds) / 1e6,
        "ms",
        "lower",
    )
    yield from _bytes(name, rounds[0].meters[0])


def _times(meters: list[Meter]) -> tuple[float, float, float]:
    """Return milliseconds of the median member: its sum, its noise, and both."""
    sums, noises = [one.ns / 1e6 for one in meters], [one.noise_ns / 1e6 for one in meters]
    both = map(sum, zip(sums, noises, strict=True))
    return statistics.median(sums), statistics.median(noises), statistics.median(both)


def _member(
    name: str, times: list[tuple[float, float, float]], target: float | None = None
) -> Iterator[Measure]:
    sums, noises, both = zip(*times, strict=True)
    yield Measure(BENCH, f"member_{name}", min(sums), "ms", "lower", target)
    yield Measure(BENCH, f"member_{name}_typical", statistics.median(sums), "ms", "lower")
    yield Measure(BENCH, f"noise_{name}", min(noises), "ms", "lower")
    yield Measure(BENCH, f"both_{name}", min(both), "ms", "lower")


def _bytes(name: str, meter: Meter) -> Iterator[Measure]:
    yield Measure(BENCH, f"sent_{name}", meter.sent / 1e3, "kB", "lower")
    yield Measure(BENCH, f"received_{name}", meter.received / 1e3, "kB", "lower")


def _crowd() -> Iterator[Measure]:
    for case, (threshold, n_gone) in _cases(N_CROWD).items():
        parties = Parties(N_CROWD, threshold)
        meters = [lone_member(parties, SystemEntropy(), n_gone) for _ in range(N_LONE + 1)][1:]
        yield from _member(f"{N_CROWD}_{case}", [_times([meter]) for meter in meters])
        yield from _bytes(f"{N_CROWD}_{case}", meters[0])


def library_ms(n: int, threshold: int) -> float:
    """Return the time of a member's calls of the cryptographic library.

    Signatures made and checked, boxes sealed and opened, agreements and masks: the number of each,
    times its best time.
    """
    private, identity, info = bytes(range(32)), Identity.from_seed(bytes(32)), bytes(150)
    public, roster, total = (
        derive_public_key(private),
        Roster(("one",), (identity.public_key,)),
        np.zeros(SIZE, np.uint64),
    )
    own, other = (
        X25519PrivateKey.from_private_bytes(private),
        X25519PublicKey.from_public_bytes(public),
    )
    signature, box = identity.sign(info), seal(public, bytes(72), info)
    calls: dict[Callable[[], object], float] = {
        lambda: identity.sign(info): n + 5,
        lambda: roster.check_signature(0, signature, info): n - 1 + threshold,
        lambda: seal(public, bytes(72), info): n - 1,
        lambda: list(open_boxes(private, [(box, info)] * 10)): (n - 1) / 10,
        lambda: own.exchange(other): n - 1,
        lambda: derive_public_key(private): 2,
        lambda: add_masks(total, [(private, True)]): n,
    }
    return sum(1e3 * times / rate(call, 1, seconds=0.01) for call, times in calls.items())


def sum_alone_ms(n: int) -> float:
    """Return the time of masking and adding.

    A member agrees with all others and masks; the collector adds one vector and removes one self
    mask.
    """
    entropy, context = SystemEntropy(), RoundContext(bytes(32), bytes(32), 1, bytes(32))
    secrets = [draw_secrets(entropy) for _ in range(n)]
    keys = {i: derive_public_keys(one, context, i) for i, one in enumerate(secrets)}
    counts, total, own = (
        entropy.below_many(1_000, SIZE),
        np.zeros(SIZE, np.uint64),
        entropy.bytes(32),
    )

    def work() -> None:
        np.add(total, mask_vector(counts, secrets[0], context, 0, keys), out=total)
        add_masks(total, [(own, False)])

    return 1e3 / rate(work, 1)


def _mpyc() -> Iterator[Measure]:
    competitor, n = "MPyC", 10
    theirs = 1e3 * min(
        run_script(
            make_environment("mpyc", "mpyc", "gmpy2", "numpy", "uvloop"),
            HERE / "mpyc_sum.py",
            "-M10",
            "--no-log",
        ).values()
    )
    alone, whole = (
        sum_alone_ms(n),
        min(
            _times(list(_play_round(Parties(n, least(n)), 0).staying))[0] for _ in range(N_AGAINST)
        ),
    )
    yield Measure(BENCH, "mpyc_10", theirs, "ms", "lower")
    for name, ours, target in (("sum_alone_10", alone, TIMES_MPYC), ("everything_10", whole, None)):
        yield Measure(BENCH, name, ours, "ms", "lower", None, competitor, ours / theirs)
        yield Measure(BENCH, f"{name}_less_than_mpyc", theirs / ours, "x", "higher", target)


def _flower() -> Iterator[Measure]:
    """Return numbers of a mask a second.

    Here 64 bits from a key of 256 bits, there 32 bits from a seed of 32.
    """
    competitor = "Flower SecAgg+ (32-bit seeds)"
    theirs = run_script(make_environment("flower", "flwr"), HERE / "flower_masks.py")["numbers"]
    stream = np.zeros(SIZE, np.uint64)
    ours = rate(partial(add_masks, stream, [(bytes(range(32)), True)]), SIZE)
    yield Measure(BENCH, "mask_numbers", ours, "1/s", "higher", None, competitor, ours / theirs)
    yield Measure(BENCH, "mask_numbers_flower", theirs, "1/s", "higher")
