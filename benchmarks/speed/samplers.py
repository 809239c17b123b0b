"""Exact noise and randomised answers against their peers, one core, all in the same run.

Noise: discrete Laplace samples a second, the worst over scales 1 to 1,600, against OpenDP's vector path (exact as well) and NumPy's
float Laplace (fast, and safe for nothing). Shares: what one of ten databases adds to 10,000 sums where three may collude. Answers:
reports a second at epsilon 1 over 16 and 1,024 cells. *client* is one report per call, as a real participant makes it; *batch* is the
vectorised population of a simulation; *aggregate* is counting and estimating.
Each peer's figure is what it reaches in its own environment in this run; ours come from the cryptographic source.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.measure import Measure, rate
from benchmarks.peers import ask, environment
from shoal.entropy import SystemEntropy
from shoal.mechanisms.bits import OneTimeRappor, PQPerturbation
from shoal.mechanisms.laplace import LaplaceSampler
from shoal.mechanisms.reports import FrequencyMechanism
from shoal.mechanisms.response import RandomResponse
from shoal.mechanisms.sensitivity import Histogram
from shoal.mechanisms.shares import SharedLaplace
from shoal.mechanisms.subset import SubsetSelection
from shoal.privacy.events import Relation, Scope, Unit

HERE = Path(__file__).parent
SCALES = (1, 16, 160, 1600)
SHARES = {0.1: 5.0, 0.00001: 50.0}
"""Epsilon of a count -> the milliseconds that 10,000 two-sided shares may take."""
CELLS = {16: 100_000, 1024: 10_000}
MECHANISMS: dict[str, type[RandomResponse | OneTimeRappor | PQPerturbation | SubsetSelection]] = {
    "random_response": RandomResponse,
    "rappor": OneTimeRappor,
    "pq": PQPerturbation,
    "subset_selection": SubsetSelection,
}


def measures() -> Iterator[Measure]:
    """Noise first, then its shares, then the reporting mechanisms."""
    yield from _noise()
    yield from _shares()
    yield from _reports()


def _noise() -> Iterator[Measure]:
    entropy = SystemEntropy()
    n = 1_000_000
    opendp = ask(environment("opendp", "opendp"), HERE / "peer_opendp.py")
    unsafe = np.random.default_rng(0)
    ours, against_opendp, against_numpy = [], [], []
    for scale in SCALES:
        sampler = LaplaceSampler(Fraction(1, scale))
        ours.append(rate(partial(sampler.draw_many, n, entropy), n))
        against_opendp.append(ours[-1] / opendp[f"scale_{scale}"])
        against_numpy.append(ours[-1] / rate(partial(unsafe.laplace, scale=scale, size=n), n))
        yield Measure("samplers", f"laplace_samples_per_s_scale_{scale}", ours[-1], "1/s", "higher")
    yield Measure("samplers", "laplace_samples_per_s", min(ours), "1/s", "higher", target=15e6)
    yield Measure("samplers", "laplace_vs_opendp", min(against_opendp), "x", "higher", 100, "opendp", min(against_opendp))
    yield Measure("samplers", "laplace_vs_numpy_unsafe", min(against_numpy), "x", "higher", 0.4, "numpy (unsafe)", min(against_numpy))


def _shares() -> Iterator[Measure]:
    entropy = SystemEntropy()
    n = 10_000
    scope = Scope(Unit.RECORD, Relation.ADD_REMOVE, "the miner and up to 3 colluding databases")
    for epsilon, target in SHARES.items():
        noise = SharedLaplace(epsilon, Histogram(), scope, n_honest=7)
        ms = 1000 * n / rate(partial(noise.share, n, entropy), n)
        yield Measure("samplers", f"laplace_shares_10k_epsilon_{epsilon:g}", ms, "ms", "lower", target)


def _reports() -> Iterator[Measure]:
    peers = {
        "multi-freq-ldpy": ask(environment("multi-freq-ldpy", "multi-freq-ldpy"), HERE / "peer_ldpy.py"),
        "pure-ldp": ask(environment("pure-ldp", "pure-ldp", "scikit-learn", "statsmodels"), HERE / "peer_pure_ldp.py"),
    }
    for m, n in CELLS.items():
        for name, kind in MECHANISMS.items():
            for part, value in _rates(kind(1.0, m), n).items():
                measure = f"{name}_m{m}_{part}"
                # A batch is for simulations; the peers have none, so it stands alone.
                rivals = {peer: figures.get(f"{name}_{m}_{part}") for peer, figures in peers.items()}
                known = {peer: figure for peer, figure in rivals.items() if figure is not None}
                if not known:
                    yield Measure("samplers", measure, value, "1/s", "higher")
                for peer, figure in known.items():
                    yield Measure("samplers", f"{measure}_vs_{peer}", value, "1/s", "higher", None, peer, value / figure)


def _rates(mechanism: FrequencyMechanism, n: int) -> dict[str, float]:
    entropy = SystemEntropy()
    values = entropy.below_many(mechanism.cardinality, n)
    people = values[: n // 10].tolist()
    reports = mechanism.report_many(values, entropy)
    return {
        "client": rate(lambda: [mechanism.report(value, entropy) for value in people], len(people)),
        "batch": rate(lambda: mechanism.report_many(values, entropy), n),
        "aggregate": rate(lambda: mechanism.debias(mechanism.tally(reports), n), n),
    }
