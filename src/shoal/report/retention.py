"""Who takes part in a study, who must be trusted with what, and what a coordinator keeps: in words, for those who sign a study off.

What is said about keeping is what ``docs/theory/threats.md`` says and ``tests/e2e/test_traces.py`` measures.
"""

from __future__ import annotations

from collections.abc import Iterator

from shoal.names import counted
from shoal.study.anonymity import is_anonymous
from shoal.study.label import Statement
from shoal.study.manifest import Manifest
from shoal.study.spec import Study

_KEPT = {
    "anonml": "each answer, until it is folded into counts a moment later; then it is deleted",
    "ddml": (
        "each update, until it is merged into a model a moment later; the models, their average and the result stay, "
        'and with merge = "discard" a model may be somebody\'s update'
    ),
    "sdq": "masked numbers of a round, until they are summed; the sums with their noise, until the study ends; then the model",
    "pfds": "what each organisation sends, until it is folded in a moment later; what is released stays, which is what it is for",
}


def who(study: Study) -> str:
    """Who takes part, and with what."""
    least, size = study.participation.minimum, study.participation.size
    if study.sdq is not None:
        return f"{counted(study.sdq.n_databases, 'database')} (at least {least:,}), with {size:,} rows in all as a public guess"
    if study.pfds is not None:
        return f"{counted(study.pfds.n_holders, 'organisation')} (at least {least:,}), with {size:,} rows in all as a public guess"
    if study.protocol == "ddml":
        times = counted(study.privacy.n_updates, "update")
        return f"devices with a few rows each: at least {least:,}, {size:,} expected, up to {times} from each"
    return f"people with one row each: at least {least:,}, {size:,} expected"


def trusted(study: Study, statement: Statement) -> Iterator[str]:
    """Who must be trusted with what, for privacy and for the result."""
    if study.protocol in ("sdq", "pfds"):
        yield "each organisation, with the rows that it holds already"
    if study.trust == "local":
        yield "for privacy: nobody else, since what leaves is already private"
    elif study.trust == "shuffled":
        share = 100 * (study.participation.honest_share or 1.0)
        yield "for the local epsilon: nobody, since what leaves is already private"
        yield f"for the epsilon of the crowd: a relay of somebody else that shuffles and does not tell, and {share:.3g} % honest people"
    else:
        # The last of what a guarantee rests on is what happens where too many drop out.
        yield from statement.rests_on[:-1]
    yield "for the result: that participants answer truly, and that the coordinator computes with what they sent"
    yield "everywhere: the participant's own machine, and its copy of this software"


def retention(manifest: Manifest) -> Iterator[str]:
    """What a coordinator that runs this software keeps, and for how long."""
    study = manifest.study
    yield _KEPT[study.protocol]
    if is_anonymous(study):
        yield "keys that registered, made for this study, and what was issued to them, for good; of tickets digests, until the end"
        yield "names of packets, which are not names of people, and without digests of their content once the study ends"
    else:
        yield "SHA-256 of each key that enrolled, for good"
    yield "no log of requests: not who asked, from where, when, or with which program"
    yield (
        "the study, its totals and its result, for good; with PostgreSQL or Redis their logs and backups keep more "
        "(shoal: docs/theory/threats.md)"
    )
    yield "each participant keeps a ledger of what it spent, and the bytes that it sent, on its own machine"
