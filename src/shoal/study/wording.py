"""What leaves a participant, who sees it and what no guarantee covers, in words for the label."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from shoal.messages.base import Array
from shoal.messages.codec import encode
from shoal.names import counted
from shoal.privacy.events import Unit
from shoal.privacy.rounding import show
from shoal.privacy.zcdp import epsilon_to_rho, rho_to_epsilon
from shoal.protocols.anonml.analysis import BITS, BLOCKS, PLACING, TABLES, packet_bytes, report_bytes, shares
from shoal.protocols.anonml.params import Paper
from shoal.protocols.anonml.plus import PlusScript
from shoal.protocols.anonml.script import Script
from shoal.protocols.ddml.messages import ID_BYTES, Draw, Update
from shoal.protocols.ddml.params import Params
from shoal.protocols.pfds.params import Params as Holders
from shoal.protocols.sdq.script import Script as SumScript
from shoal.study.price_people import free_answers
from shoal.study.spec import Study
from shoal.study.wording_pfds import leaves_pfds, not_covered_pfds, seen_by_pfds
from shoal.study.wording_sdq import leaves_sdq, not_covered_sdq, seen_by_sdq

_DIGEST_BYTES = 32
_LAST_EPOCH = 2**32
"""Later than any: an epoch has a thousand updates or more."""

_QUESTIONS = {
    PLACING: "whether one of your numbers is above a given point",
    TABLES: "which bin of one feature is yours, with your label",
    BITS: "one yes or no about a feature, your label, or whether they agree",
    BLOCKS: "which levels of a few features are yours, with your label",
}
_DOINGS = {
    PLACING: "place quantiles",
    TABLES: "answer tables of one feature and the label",
    BITS: "answer one bit about a feature, the label, or whether they agree",
    BLOCKS: "answer about several features and the label at once",
}


def leaves(study: Study, script: Script | None, params: Params | None, sums: SumScript | None, holders: Holders | None) -> str:
    """What leaves, and that nothing else does."""
    if holders is not None:
        return leaves_pfds(holders)
    if sums is not None:
        return leaves_sdq(study, sums)
    if params is not None:
        n = params.n_updates
        times = "once" if n == 1 else f"up to {n} times"
        return f"a model of {counted(params.n_weights, 'weight')}, changed by your rows and blurred by noise, {times}; no row"
    assert script is not None, "a plan has the figures of one protocol"
    same = "" if len(script.prices) == 1 else ", with the same ticket in all of them"
    return f"{_packets(script, 'ticket', same)}{_free(study)}; nothing else about you"


def leaves_by_tokens(study: Study, script: Script) -> str:
    """What leaves where packets are admitted by tokens."""
    n = len(script.prices)
    same = ", with the number of your place" + ("" if n == 1 else "; that they are of one person cannot be told by anything else")
    return f"{_packets(script, 'token', same)}{_free(study)}; nothing else about you"


def _free(study: Study) -> str:
    return f"; and up to {counted(study.queries.n_queries, 'randomised answer')} to free questions" if study.queries else ""


def _packets(script: Script, admitted_by: str, same: str) -> str:
    if isinstance(script, PlusScript):
        asked = [_QUESTIONS[kind] for kind in shares(script)]
        return (
            f"one packet: a {admitted_by} without your name, the number of a question and a randomised answer to it. "
            f"The {admitted_by} draws the question: {', or '.join(asked)}"
        )
    n = len(script.prices)
    return f"{counted(n, 'packet')}: each a {admitted_by} without your name, the number of a question and a randomised answer to it{same}"


def who_is_asked(script: Script) -> str:
    """What is asked of which share of the people, by the study's rule."""
    if isinstance(script, PlusScript):
        (first, share), *others = shares(script).items()
        parts = [f"{_percent(share)} of the people {_DOINGS[first]}", *(f"{_percent(share)} {_DOINGS[kind]}" for kind, share in others)]
        return f"Everyone answers one question: {', '.join(parts)}."
    paper = script.params
    assert isinstance(paper, Paper)
    tables = f"{counted(paper.n_subsets, 'table')} of {counted(paper.subset_size, 'feature')} and the label"
    numbers = f", and one bit about the median of each of {counted(len(paper.unbinned), 'number')}" if paper.unbinned else ""
    return f"Everyone is in one of {counted(paper.n_partitions, 'partition')}, and answers {tables}{numbers}."


def _percent(share: Fraction) -> str:
    return f"{float(100 * share):.3g} %"


def n_bytes(study: Study, script: Script | None, params: Params | None) -> int | None:
    """Most bytes that leave: whole messages, free answers without their envelope; None where what leaves says it in words."""
    if params is not None:
        return params.n_updates * _update_bytes(params.n_weights)
    if script is None:
        return None
    free = sum(
        release.count * report_bytes(release.event.mechanism, int(release.event.parameters["cardinality"]))
        for release in free_answers(study)
    )
    return len(script.prices) * packet_bytes(script) + free


def _update_bytes(p: int) -> int:
    """A request for a model and the update, as they travel."""
    study, one = bytes(_DIGEST_BYTES), bytes(ID_BYTES)
    update = Update(study=study, id=one, epoch=_LAST_EPOCH, weights=Array.of(np.zeros(p, np.int32)))
    return len(encode(Draw(study=study, id=one))) + len(encode(update))


def seen_by(study: Study, sums: SumScript | None, holders: Holders | None) -> str:
    """Who sees what leaves."""
    if holders is not None:
        return seen_by_pfds(holders)
    if sums is not None:
        return seen_by_sdq(study, sums)
    if study.protocol == "ddml":
        return "the coordinator, every device that draws while your update is in the model, and everyone they show it to"
    if study.trust == "shuffled":
        return "the coordinator, in one batch with everyone else's and without your name; and everyone it shows it to"
    return (
        "the coordinator and everyone it shows it to. No name is on the packet; but the coordinator is given the ticket when you enrol, "
        "and could tell that the packet is yours: the guarantee does not rest on your being unknown"
    )


def in_several(study: Study) -> str:
    """What someone spends who is in several of the databases.

    Notes
    -----
    In one secure sum such a person moves the same numbers k times as far: pure epsilon grows k-fold, rho by k squared.
    """
    epsilon, delta = study.privacy.epsilon, study.privacy.delta
    if not delta:
        return "k times this epsilon"
    two = rho_to_epsilon(4 * epsilon_to_rho(epsilon, delta), delta)
    return f"k times this epsilon and more, at the same delta (in two of them epsilon {show(two)})"


def not_covered(study: Study, sums: SumScript | None, holders: Holders | None) -> tuple[str, ...]:
    """What the guarantee does not speak about."""
    is_held = study.protocol in ("sdq", "pfds")
    like = (
        "people like those in your database, whether or not they are in it" if is_held else "people like you, whether or not you take part"
    )
    items = [f"what the model says about {like}", "studies that your ledger does not know of"]
    if study.protocol in ("anonml", "ddml"):
        items.insert(0, "that you enrolled")
        items.insert(1, "whether your data fits the study's ranges and values: if not, you cannot take part, and that may be seen")
    if study.protocol == "ddml":
        items.insert(2, "that your device has rows at all: drawing a model shows it")
    if is_held:
        items.insert(0, "that your organisation takes part, and what its records have in common")
        several = f"someone in k of the databases: {in_several(study)}"
        items.insert(
            1, several if study.unit is Unit.PERSON else "rows of the same person in other databases, each of which spends for itself"
        )
    if sums is not None:
        items[:0] = not_covered_sdq(study, sums.params)
    if holders is not None:
        items[:0] = not_covered_pfds(holders)
    if study.privacy.unit == "record":
        items.insert(0, "several rows of one person together: each is protected by itself")
    return tuple(items)
