"""Compare all protocols and trust levels that fit a study, on the same rows.

``shoal compare`` and ``shoal hello`` call `compare_study`. Each entry has its score, its guarantee,
its costs, and the parties that must be trusted. The same epsilon means something different in each:
unit, neighbouring relation and adversary are part of an entry, and nothing here converts one
epsilon into another.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

from shoal.errors import ShoalError
from shoal.privacy.rounding import format_epsilon
from shoal.simulation.alternatives import derive_study, list_alternatives, list_differences
from shoal.simulation.engines import RunCallback, check_engine, run_all, use_one_thread
from shoal.simulation.protocol import Alternative, MessageVolume
from shoal.simulation.registry import (
    find_simulated,
    get_simulated,
    make_simulation_params,
    run,
    score_baselines,
)
from shoal.simulation.run import RunOutcome, RunTask, Split
from shoal.simulation.sweep import summarise
from shoal.study.manifest import Manifest
from shoal.study.plan import Plan, make_plan
from shoal.study.spec import Study

REMARK = (
    "This is a simulation. Nothing was sent, and it does not protect these rows: scores and "
    "baselines were computed on the rows themselves. "
    "The epsilons are not on one scale: each has its own unit, relation and adversary, and an "
    "epsilon for replace is at most twice the one for add-remove."
)
_BASELINES = ("most_common", "mean_label", "without_privacy")


def measure_message_volume(
    plan: Plan, task: RunTask, split: Split, *, joint: bool
) -> MessageVolume | None:
    """Return what one participant of a planned study sends; None if that takes too long.

    Parameters
    ----------
    plan
        Its label states the most that a person or a device sends.
    task, split
        One run, and its rows. The real machines of databases and organisations run on them, and
        everything that leaves is counted.
    joint
        Whether joint computations are run also, in other processes; see
        `shoal.simulation.sdq.measure_messages`.
    """
    return find_simulated(task.params).measure_messages(plan, task, split, joint=joint)


def _ignore_progress() -> None:
    """Report no progress."""


@dataclass(frozen=True, eq=False)
class _ComparedStudy:
    """One study of a comparison, its rows as the protocol uses them, and its last run."""

    alternative: Alternative
    plan: Plan
    split: Split
    tasks: tuple[RunTask, ...]
    last: RunOutcome
    cpu_seconds: float
    volume: MessageVolume | None


@dataclass(frozen=True)
class ComparisonOptions:
    """The options of a comparison.

    Parameters
    ----------
    epsilons
        Each is the whole budget of one unit, in every alternative.
    repeats, seed
        Number of runs of each alternative, and the source of all randomness. ``shoal simulate``
        makes the same runs of the same study.
    jobs, engine
        Arguments of `run_all`. The last run of each alternative takes place in this process, which
        measures its time.
    n_holders
        Databases of SDQ and organisations of PFDS if the table does not name them; None for the
        number in the study, or 10.
    joint
        Whether the messages of a committee are measured, which takes processes and seconds.
        Otherwise they are not known.
    """

    epsilons: Sequence[float]
    repeats: int
    seed: int
    jobs: int = 1
    engine: str = "local"
    n_holders: int | None = None
    joint: bool = False


def compare_study(
    study: Study,
    split: Split,
    options: ComparisonOptions,
    on_progress: RunCallback = _ignore_progress,
) -> dict[str, Any]:
    """Run all alternatives to a study on the same rows.

    Parameters
    ----------
    split
        The rows of the study. Holders that the table names are the databases of SDQ and the
        organisations of PFDS. If it names people, a device of DDML belongs to a person.
    on_progress
        Called after each of `count_steps` steps.

    Returns
    -------
    dict
        The content of ``compare.json`` without the command and the versions, as plain data.
    """
    check_engine(options.jobs, options.engine)
    n_holders = split.n_holders or options.n_holders
    pairs = [
        (epsilon, candidate)
        for epsilon in options.epsilons
        for candidate in list_alternatives(study)
    ]
    entries: list[_ComparedStudy] = []
    reasons: dict[tuple[str, str], list[float]] = {}
    with use_one_thread():
        baselines = score_baselines(make_simulation_params(study), split)
        for epsilon, alternative in pairs:
            try:
                derived = derive_study(alternative, study, epsilon, n_holders)
                entries.append(_try_alternative(alternative, derived, split, options))
                on_progress()
            except ShoalError as error:
                reasons.setdefault((alternative.name, error.what), []).append(epsilon)
                for _ in range(options.repeats):
                    on_progress()
        runs = _run_remaining(entries, split, options, on_progress)
    manifest = Manifest(study)
    return {
        "compared": True,
        "simulated": True,
        "remark": REMARK,
        "title": study.title,
        "digest": manifest.digest.hex(),
        "short": manifest.short_digest,
        "seed": options.seed,
        "repeats": options.repeats,
        "rows": {
            "asked": len(split.train_labels),
            "unseen": len(split.test_labels),
            "declared": study.participation.size,
        },
        "measure": "rmse" if "mean_label" in baselines else "accuracy",
        "yardsticks": {name: asdict(baselines[name]) for name in _BASELINES if name in baselines},
        "entries": [
            _make_record(study, entry, outcomes)
            for entry, outcomes in zip(entries, runs, strict=True)
        ],
        "left_out": list(_list_left_out(reasons, len(options.epsilons))),
    }


def count_steps(study: Study, epsilons: Sequence[float], repeats: int) -> int:
    """Return the number of steps of a comparison: its runs, including impossible ones."""
    return len(list_alternatives(study)) * len(epsilons) * repeats


def _try_alternative(
    alternative: Alternative, study: Study, split: Split, options: ComparisonOptions
) -> _ComparedStudy:
    """Return an alternative with its last run, which shows whether it can run at all."""
    split = get_simulated(study).adapt_rows(split)
    plan, params = make_plan(study), make_simulation_params(study)
    tasks = tuple(RunTask(params, options.seed, repeat) for repeat in range(options.repeats))
    begun = time.process_time()
    last = run(tasks[-1], split)
    cpu_seconds = time.process_time() - begun
    volume = measure_message_volume(plan, tasks[-1], split, joint=options.joint)
    return _ComparedStudy(alternative, plan, split, tasks, last, cpu_seconds, volume)


def _run_remaining(
    entries: Sequence[_ComparedStudy],
    split: Split,
    options: ComparisonOptions,
    on_progress: RunCallback,
) -> list[list[RunOutcome]]:
    """Return the outcomes of all runs of each entry; the last ones exist already."""
    outcomes_by_entry: dict[int, list[RunOutcome]] = {}
    # Workers receive the rows once as given, and once as a protocol adapts them.
    for is_adapted in (False, True):
        some = [i for i, entry in enumerate(entries) if (entry.split is not split) == is_adapted]
        tasks = [task for i in some for task in entries[i].tasks[:-1]]
        outcomes: Iterator[RunOutcome] = iter(())
        if tasks:
            rows = entries[some[0]].split
            outcomes = iter(run_all(tasks, rows, options.jobs, options.engine, on_progress))
        outcomes_by_entry |= {
            i: [*islice(outcomes, len(entries[i].tasks) - 1), entries[i].last] for i in some
        }
    return [outcomes_by_entry[i] for i in range(len(entries))]


def _make_record(
    study: Study, entry: _ComparedStudy, outcomes: Sequence[RunOutcome]
) -> dict[str, Any]:
    """Return an entry as plain data."""
    derived, plan, volume = entry.plan.study, entry.plan, entry.volume
    total, central = plan.total_loss, plan.central_loss
    return {
        "name": entry.alternative.name,
        "protocol": derived.protocol,
        "variant": derived.variant,
        "trust": derived.trust,
        "settings": list_differences(study, derived),
        "epsilon": total.epsilon,
        "delta": total.delta,
        "unit": total.scope.unit.value,
        "relation": total.scope.relation.value,
        "adversary": total.scope.adversary,
        "central": None
        if central is None
        else {
            "epsilon": central.epsilon,
            "delta": central.delta,
            "adversary": central.scope.adversary,
        },
        "trusted": _describe_trust(plan),
        "scores": {
            measure: asdict(mean)
            for measure, mean in summarise([outcome.scores for outcome in outcomes]).items()
        },
        "runs": [asdict(outcome.scores) for outcome in outcomes],
        "bytes": None if volume is None else volume.bytes,
        "messages": None if volume is None else volume.messages,
        "cpu_seconds": entry.cpu_seconds,
        "n_participants": outcomes[0].n_participants,
        "study": derived.to_content(),
    }


def _describe_trust(plan: Plan) -> str:
    """Return who must be trusted with what, as text that begins with "nobody" if possible."""
    study, holders = plan.study, plan.design.protocol.holders
    if study.trust == "shuffled":
        share = 100 * (study.participation.honest_share or 1)
        return (
            "nobody, for the epsilon against everyone; for the central epsilon a relay, which must "
            "shuffle the answers and keep their senders secret, and "
            f"{share:.3g} % of the people, who must answer honestly"
        )
    if not holders.are_organisations:
        return "nobody"
    owner = f"each {holders.singular}, with the rows that it has"
    if study.trust == "local":
        return f"{owner}; nobody else"
    # The last assumption is about too many members that drop out.
    return "; ".join([owner, *plan.make_statement().rests_on[:-1]])


def _list_left_out(
    reasons: Mapping[tuple[str, str], Sequence[float]], n_epsilons: int
) -> Iterator[dict[str, str]]:
    """Yield alternatives that cannot run, with the reason, and the epsilons if others work."""
    for (name, why), epsilons in reasons.items():
        at = (
            ""
            if len(epsilons) == n_epsilons
            else f", epsilon {', '.join(map(format_epsilon, epsilons))}"
        )
        yield {"name": name + at, "why": why}
