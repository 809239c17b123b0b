"""What leaves a database of SDQ, who sees it, what the guarantee rests on and what it leaves open, in words for the label."""

from __future__ import annotations

from fractions import Fraction

from shoal.names import counted
from shoal.privacy.rounding import show
from shoal.protocols.sdq.analysis import exposure, most_counts, n_levels
from shoal.protocols.sdq.params import Params, committee_size
from shoal.protocols.sdq.script import Script
from shoal.study.spec import Study

COUNT_BYTES = 8
"""A count travels in as many."""


def leaves_sdq(study: Study, script: Script) -> str:
    """What leaves, and that nothing else does."""
    params, n = script.params, most_counts(script)
    size = f"at most {counted(n * COUNT_BYTES, 'byte')}"
    free = _free_counts(study)
    if params.trust == "local":
        return f"up to {counted(n, 'count')} of your database's rows, each blurred by noise ({size}){free}; no row"
    sums = (
        f"up to {counted(n, 'count')} of your database's rows, each under a mask ({size}, besides keys and signatures); only sums over "
        "all databases can be read, with noise in them"
    )
    chosen = f"; scores of attributes, in sealed shares for a committee of {_committee(params)} databases" if _is_joint(script) else ""
    return f"{sums}{chosen}{free}; no row"


def _free_counts(study: Study) -> str:
    """What leaves for free counts, to follow what leaves for the model."""
    free = _n_free_counts(study)
    return f"; a table of counts for each of {free}" if free else ""


def _n_free_counts(study: Study) -> str:
    """How many free counts there may be; empty where none."""
    return f"up to {counted(study.queries.n_queries, 'free count')}" if study.queries else ""


def seen_by_sdq(study: Study, script: Script) -> str:
    """Who sees what leaves."""
    free = _n_free_counts(study)
    if script.params.trust == "local":
        return f"the miner, and everyone it shows it to{f', the answers to {free} included' if free else ''}"
    seen = ["masked numbers", "their sums with the noise", *(["which attributes were chosen"] if _is_joint(script) else [])]
    seen += [f"the answers to {free}"] if free else []
    return f"the coordinator and the miner see {', '.join(seen[:-1])} and {seen[-1]}; everyone sees the model"


def rests_on_sdq(script: Script) -> tuple[str, ...]:
    """What others must do for the guarantee to hold, and what happens if they do not."""
    params = script.params
    if params.trust == "local":
        return ()
    n, minimum, c = params.n_databases, params.minimum, params.max_colluders
    if params.noise == "two-selected":
        needs = [
            "for the noise: that no selected database tells what it added",
            f"for the selection: that most of the {n} databases are honest, and that all of them follow the protocol",
        ]
    else:
        needs = [f"for the sums: that at most {c} of the {n} databases side with the miner; the coordinator may do what it likes"]
    if _is_joint(script):
        needs.append(
            f"for the choices: that most of a committee of {_committee(params)} of the databases that answer are honest, and that all of "
            "them follow the protocol; the sums do not rest on that"
        )
        # A committee needs its members, however few a sum could do with.
        minimum = max(minimum, _committee(params))
    gone = dropped(n, minimum, "databases")
    seated = ", or one that sits in the committee vanishes while attributes are chosen" if _is_joint(script) and minimum < n else ""
    return (*needs, f"where {gone}{seated}, the study ends without a result; what was sent stays spent")


def dropped(n: int, minimum: int, noun: str) -> str:
    """More members of a sum gone than it can do without."""
    return f"more than {n - minimum} of the {n} {noun} drop out" if minimum < n else f"any of the {n} {noun} drops out"


def not_covered_sdq(study: Study, params: Params) -> tuple[str, ...]:
    """What the guarantee does not speak about, besides what it leaves open everywhere."""
    items = [
        "that another database counts truly: one that lies spoils the model, and nobody can tell",
        "the declared size, which is public",
    ]
    if params.noise == "two-selected":
        return exposed(study, params), *items
    if params.trust == "secure-sum" and params.max_colluders == 0:
        items.insert(
            0, "the other databases: each knows its own share of the noise, and less protects you from it; max_colluders = 1 covers that"
        )
    return tuple(items)


def notes_sdq(study: Study, script: Script) -> list[str]:
    """What a reader of the price has to know besides."""
    if script.params.noise == "all-contribute":
        return []
    told = exposed(study, script.params)
    return [f"{told[0].upper()}{told[1:]}."]


def exposed(study: Study, params: Params) -> str:
    """How likely the noise of two selected databases is known to others, with figures.

    Notes
    -----
    Ref: errata S-01 to S-04.
    """
    n_queries = study.queries.n_queries if study.queries else 0
    found = exposure(params, n_queries)
    what = "the two databases that add the noise know it: to each of them, and to whoever is told, no epsilon holds (errata S-02, S-04)"
    if not found.c:
        return what
    times = f"{counted(n_levels(params), 'level')} of the tree" + (f" and each of {counted(n_queries, 'free count')}" if n_queries else "")
    return (
        f"{what}. Two are selected anew for each of {times}. If {found.c} of the {found.n} databases collude with the miner, then each "
        f"time with chance {_percent(found.both)} both selected ones do, and the true counts are known; with chance {_percent(found.one)} "
        f"one of them does, and what noise is left gives no epsilon at all. At least once both do with chance {_percent(found.ever_both)}, "
        f"and one or both with chance {_percent(found.ever)} (errata S-01 to S-03)"
    )


def _is_joint(script: Script) -> bool:
    """Whether attributes are chosen by a committee; one that stands alone is not."""
    return any(question.startswith("choice/") for question, _ in script.dearest)


def _committee(params: Params) -> int:
    return committee_size(params.max_colluders)


def _percent(chance: Fraction) -> str:
    return f"{show(float(100 * chance), 3)} %"
