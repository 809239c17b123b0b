"""Exact noise and randomised answers against competitors, one core, in the same run.

Noise: discrete Laplace samples a second, the worst over scales 1 to 1,600, against OpenDP's vector
path (exact as well) and NumPy's float Laplace (fast, but not safe). Shares: the contribution of one
of ten databases to 10,000 sums if three may collude. Answers: reports a second at epsilon 1 over 16
and 1,024 cells. *client* is one report per call, as a real participant makes it; *batch* is the
vectorised population of a simulation; *aggregate* is counting and estimating. Each competitor is
measured in its own environment in this run; our figures use the cryptographic random source.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from functools import partial

import numpy as np

from benchmarks.competitors.environments import HERE, make_environment, run_script
from benchmarks.measure import Measure, rate
from shoal.entropy import SystemEntropy
from shoal.mechanisms.distributed_laplace import DistributedLaplace
from shoal.mechanisms.frequency_oracle import FrequencyOracle
from shoal.mechanisms.laplace import LaplaceSampler
from shoal.mechanisms.randomized_response import RandomizedResponse
from shoal.mechanisms.sensitivity import CellCounts
from shoal.mechanisms.subset_selection import SubsetSelection
from shoal.mechanisms.unary_encoding import OneTimeRappor, PQPerturbation
from shoal.privacy.events import Relation, Scope, Unit

SCALES = (1, 16, 160, 1600)
SHARES = {0.1: 5.0, 0.00001: 50.0}
"""Epsilon of a count -> the permitted milliseconds for 10,000 two-sided shares."""
CELLS = {16: 100_000, 1024: 10_000}
MECHANISMS: dict[
    str, type[RandomizedResponse | OneTimeRappor | PQPerturbation | SubsetSelection]
] = {
    "random_response": RandomizedResponse,
    "rappor": OneTimeRappor,
    "pq": PQPerturbation,
    "subset_selection": SubsetSelection,
}


def measures() -> Iterator[Measure]:
    """Yield noise first, then its shares, then the reporting mechanisms."""
    yield from _noise()
    yield from _shares()
    yield from _reports()


def _noise() -> Iterator[Measure]:
    entropy = SystemEntropy()
    n = 1_000_000
    opendp = run_script(make_environment("opendp", "opendp"), HERE / "opendp_samples.py")
    unsafe = np.random.default_rng(0)
    ours, against_opendp, against_numpy = [], [], []
    for scale in SCALES:
        sampler = LaplaceSampler(Fraction(1, scale))
        ours.append(rate(partial(sampler.draw_many, n, entropy), n))
        against_opendp.append(ours[-1] / opendp[f"scale_{scale}"])
        against_numpy.append(ours[-1] / rate(partial(unsafe.laplace, scale=scale, size=n), n))
        yield Measure("samplers", f"laplace_samples_per_s_scale_{scale}", ours[-1], "1/s", "higher")
    yield Measure("samplers", "laplace_samples_per_s", min(ours), "1/s", "higher", target=15e6)
    yield Measure(
        "samplers",
        "laplace_vs_opendp",
        min(against_opendp),
        "x",
        "higher",
        100,
        "opendp",
        min(against_opendp),
    )
    yield Measure(
        "samplers",
        "laplace_vs_numpy_unsafe",
        min(against_numpy),
        "x",
        "higher",
        0.4,
        "numpy (unsafe)",
        min(against_numpy),
    )


def _shares() -> Iterator[Measure]:
    entropy = SystemEntropy()
    n = 10_000
    scope = Scope(Unit.RECORD, Relation.ADD_REMOVE, "the miner and up to 3 colluding databases")
    for epsilon, target in SHARES.items():
        noise = DistributedLaplace(epsilon, CellCounts(), scope, n_honest=7)
        ms = 1000 * n / rate(partial(noise.draw_share, n, entropy), n)
        yield Measure(
            "samplers", f"laplace_shares_10k_epsilon_{epsilon:g}", ms, "ms", "lower", target
        )


def _reports() -> Iterator[Measure]:
    competitors = {
        "multi-freq-ldpy": run_script(
            make_environment("multi-freq-ldpy", "multi-freq-ldpy"),
            HERE / "multi_freq_ldpy_reports.py",
        ),
        "pure-ldp": run_script(
            make_environment("pure-ldp", "pure-ldp", "scikit-learn", "statsmodels"),
            HERE / "pure_ldp_reports.py",
        ),
    }
    for m, n in CELLS.items():
        for name, kind in MECHANISMS.items():
            for part, value in _rates(kind(1.0, m), n).items():
                measure = f"{name}_m{m}_{part}"
                # A batch is for simulations; the competitors have none.
                rivals = {
                    other: figures.get(f"{name}_{m}_{part}")
                    for other, figures in competitors.items()
                }
                known = {other: figure for other, figure in rivals.items() if figure is not None}
                if not known:
                    yield Measure("samplers", measure, value, "1/s", "higher")
                for other, figure in known.items():
                    yield Measure(
                        "samplers",
                        f"{measure}_vs_{other}",
                        value,
                        "1/s",
                        "higher",
                        None,
                        other,
                        value / figure,
                    )


def _rates(mechanism: FrequencyOracle, n: int) -> dict[str, float]:
    entropy = SystemEntropy()
    values = entropy.below_many(mechanism.cardinality, n)
    people = values[: n // 10].tolist()
    reports = mechanism.report_many(values, entropy)
    return {
        "client": rate(lambda: [mechanism.report(value, entropy) for value in people], len(people)),
        "batch": rate(lambda: mechanism.report_many(values, entropy), n),
        "aggregate": rate(lambda: mechanism.debias(mechanism.tally(reports), n), n),
    }
