"""Every protocol and trust that fits a study, on the same rows: what each learns, at what guarantee, for how much, and who must be trusted.

The same epsilon means something else in each: its unit, neighbouring relation and adversary stand beside it, and nothing here puts them on
one scale.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from typing import Any

import numpy as np

from shoal.errors import ShoalError, SpecError
from shoal.privacy.rounding import show
from shoal.sim.comparing_messages import Sent, sent_by_one
from shoal.sim.comparing_studies import Way, derive, differences, ways_of
from shoal.sim.comparing_threads import one_thread
from shoal.sim.engines import Done, check_engine, run_all
from shoal.sim.protocols import params_for, run, yardsticks
from shoal.sim.runs import Outcome, Split, Task
from shoal.sim.sweep import summary
from shoal.study.manifest import Manifest
from shoal.study.plan import Plan, make_plan
from shoal.study.spec import Study

REMARK = (
    "a simulation: nothing was sent, and these rows are not protected by it; scores and yardsticks were computed on the rows themselves. "
    "The epsilons are not one scale: each has a unit, a relation and an adversary of its own, and replace counts at most twice add-remove"
)
_YARDSTICKS = ("most_common", "mean_label", "without_privacy")
_OWNERS = {"sdq": "each database", "pfds": "each organisation"}


def _nothing() -> None:
    """Nobody waits for news."""


@dataclass(frozen=True, eq=False)
class _Entry:
    """One study that is compared, with its rows as the protocol takes them, and what came of its last run."""

    way: Way
    plan: Plan
    split: Split
    tasks: tuple[Task, ...]
    last: Outcome
    cpu_seconds: float
    sent: Sent | None


def compare_study(
    study: Study,
    split: Split,
    *,
    epsilons: Sequence[float],
    repeats: int,
    seed: int,
    jobs: int = 1,
    engine: str = "local",
    n_holders: int | None = None,
    joint: bool = False,
    done: Done = _nothing,
) -> dict[str, Any]:
    """All ways of answering a study's question, side by side on the same rows.

    Parameters
    ----------
    study
        The study whose question it is.
    split
        Its rows. Holders that the table names are the databases of SDQ and the organisations of PFDS; where it names people, a device of
        DDML is a person's.
    epsilons
        Each is the whole budget of one unit in every way.
    repeats, seed
        Runs of each way, and what all randomness follows from: the same runs as ``shoal simulate`` makes of the same study.
    jobs, engine
        As `run_all` takes them. The last run of each way is made in this process, where its time is taken.
    n_holders
        How many hold the rows in SDQ and PFDS, where the table does not name them; None for as many as the study says, or 10.
    joint
        Whether what a committee sends is measured, which takes processes and seconds; otherwise it is not known.
    done
        Called after each step, of which there are `n_steps`.

    Returns
    -------
    dict
        What ``compare.json`` holds, but for the command and the versions, as plain data.
    """
    check_engine(jobs, engine)
    found = [(epsilon, way) for epsilon in epsilons for way in ways_of(study)]
    entries: list[_Entry] = []
    reasons: dict[tuple[str, str], list[float]] = {}
    with one_thread():
        held_against = yardsticks(params_for(study), split)
        for epsilon, way in found:
            try:
                made = derive(way, study, epsilon, split.n_holders or n_holders)
                entries.append(_tried(way, made, _rows_of(made, split), seed, repeats, joint=joint))
                done()
            except ShoalError as error:
                reasons.setdefault((way.name, error.what), []).append(epsilon)
                for _ in range(repeats):
                    done()
        runs = _all_runs(entries, split, jobs, engine, done)
    manifest = Manifest(study)
    return {
        "compared": True,
        "simulated": True,
        "remark": REMARK,
        "title": study.title,
        "digest": manifest.digest.hex(),
        "short": manifest.short,
        "seed": seed,
        "repeats": repeats,
        "rows": {"asked": len(split.labels), "unseen": len(split.unseen_labels), "declared": study.participation.size},
        "measure": "rmse" if "mean_label" in held_against else "accuracy",
        "yardsticks": {name: asdict(held_against[name]) for name in _YARDSTICKS if name in held_against},
        "entries": [_record(study, entry, outcomes) for entry, outcomes in zip(entries, runs, strict=True)],
        "left_out": list(_left_out(reasons, len(epsilons))),
    }


def n_steps(study: Study, epsilons: Sequence[float], repeats: int) -> int:
    """How many steps a comparison has: runs, those that cannot be made among them."""
    return len(ways_of(study)) * len(epsilons) * repeats


def _rows_of(study: Study, split: Split) -> Split:
    """The rows as a protocol takes them: to DDML the device of a row is its person's, or its own.

    Raises
    ------
    SpecError
        ``SIM-002``: people have several rows, and AnonML asks about one.
    """
    if study.protocol == "ddml" and split.holders is not split.people:
        return replace(split, holders=split.people, n_holders=0)
    if study.protocol == "anonml" and split.people is not None:
        most = int(np.bincount(split.people).max())
        if most > 1:
            raise SpecError("SIM-002", f"AnonML asks each person about one row, and people of this table have up to {most}.")
    return split


def _tried(way: Way, study: Study, split: Split, seed: int, repeats: int, *, joint: bool) -> _Entry:
    """A way with its last run, which shows whether it can be gone at all."""
    plan, params = make_plan(study), params_for(study)
    tasks = tuple(Task(params, seed, repeat) for repeat in range(repeats))
    begun = time.process_time()
    last = run(tasks[-1], split)
    cpu_seconds = time.process_time() - begun
    return _Entry(way, plan, split, tasks, last, cpu_seconds, sent_by_one(plan, tasks[-1], split, joint=joint))


def _all_runs(entries: Sequence[_Entry], split: Split, jobs: int, engine: str, done: Done) -> list[list[Outcome]]:
    """The outcomes of all runs of each entry; the last ones are there already."""
    found: dict[int, list[Outcome]] = {}
    # Rows travel to where they are worked on once in each form that they have.
    for has_own_form in (False, True):
        some = [i for i, entry in enumerate(entries) if (entry.split is not split) == has_own_form]
        tasks = [task for i in some for task in entries[i].tasks[:-1]]
        outcomes = iter(run_all(tasks, entries[some[0]].split, jobs, engine, done) if tasks else ())
        found |= {i: [*islice(outcomes, len(entries[i].tasks) - 1), entries[i].last] for i in some}
    return [found[i] for i in range(len(entries))]


def _record(study: Study, entry: _Entry, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """An entry as plain data."""
    made, plan, sent = entry.plan.study, entry.plan, entry.sent
    total, central = plan.everything, plan.central
    return {
        "name": entry.way.name,
        "protocol": made.protocol,
        "variant": made.variant,
        "trust": made.trust,
        "settings": differences(study, made),
        "epsilon": total.epsilon,
        "delta": total.delta,
        "unit": total.scope.unit.value,
        "relation": total.scope.relation.value,
        "adversary": total.scope.adversary,
        "central": None if central is None else {"epsilon": central.epsilon, "delta": central.delta, "adversary": central.scope.adversary},
        "trusted": _trusted(plan),
        "scores": {measure: asdict(mean) for measure, mean in summary([one.scores for one in outcomes]).items()},
        "runs": [asdict(one.scores) for one in outcomes],
        "bytes": None if sent is None else sent.bytes,
        "messages": None if sent is None else sent.messages,
        "cpu_seconds": entry.cpu_seconds,
        "n_participants": outcomes[0].people,
        "study": made.content(),
    }


def _trusted(plan: Plan) -> str:
    """Who must be trusted with what, in a sentence."""
    study = plan.study
    if study.trust == "shuffled":
        share = 100 * (study.participation.honest_share or 1)
        return (
            "nobody, for the epsilon against everyone; for that of the crowd a relay, to shuffle and not to tell, and "
            f"{share:.3g} % of the people, to answer honestly"
        )
    if study.protocol not in _OWNERS:
        return "nobody"
    own = f"{_OWNERS[study.protocol]}, with the rows that it has"
    if study.trust == "local":
        return f"{own}; nobody else"
    # The last of what a guarantee rests on is what happens where too many drop out.
    return "; ".join([own, *plan.statement().rests_on[:-1]])


def _left_out(reasons: Mapping[tuple[str, str], Sequence[float]], n_epsilons: int) -> Iterator[dict[str, str]]:
    """Ways that could not be gone, each with the reason; with its epsilons where it could at others."""
    for (name, why), epsilons in reasons.items():
        at = "" if len(epsilons) == n_epsilons else f", epsilon {', '.join(map(show, epsilons))}"
        yield {"name": name + at, "why": why}
