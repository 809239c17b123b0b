"""From a manifest to the machine that a coordinator hosts for it, and to the names under which that machine knows participants."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from shoal.coordinator.store.base import Hosted
from shoal.crypto.roster import Roster
from shoal.errors import SpecError
from shoal.messages import codec
from shoal.messages.base import Message, Record, Registry
from shoal.protocols.anonml.aggregator import AnonMLAggregator
from shoal.protocols.anonml.assignment import words_of
from shoal.protocols.anonml.messages import MESSAGES as ANONML
from shoal.protocols.ddml.messages import MESSAGES as DDML
from shoal.protocols.machines import Aggregator
from shoal.protocols.pfds.messages import MESSAGES as PFDS
from shoal.protocols.pfds.sharing_aggregator import SharingAggregator
from shoal.protocols.pfds.summing_aggregator import SummingAggregator
from shoal.protocols.pfds.sums import SumScript
from shoal.protocols.pfds.tables_aggregator import TablesAggregator
from shoal.protocols.sdq.aggregator import SDQAggregator
from shoal.protocols.sdq.messages import MESSAGES as SDQ
from shoal.protocols.sdq.queries import FreeQuery, Query
from shoal.protocols.sums.terms import Terms
from shoal.study import anonml, pfds, sdq
from shoal.study.anonymity import check_delivery, has_tokens, is_anonymous
from shoal.study.manifest import Manifest
from shoal.study.spec import Study
from shoal.transport.forms import Issuing

_MESSAGES = {"anonml": ANONML, "ddml": DDML, "sdq": SDQ, "pfds": PFDS}


class Asked(Record):
    """The free counts of an SDQ study, as they are kept with it."""

    queries: tuple[FreeQuery, ...] = ()


def queries_to_bytes(queries: tuple[Query, ...]) -> bytes:
    """Free counts as a store keeps them; nothing for none."""
    return codec.dump(Asked(queries=queries)) if queries else b""


def queries_of(hosted: Hosted) -> tuple[Query, ...]:
    """The free counts that are asked in a study."""
    return codec.load(hosted.queries, Asked).queries if hosted.queries else ()


def messages_of(study: Study) -> Registry:
    """The messages of a study's protocol."""
    return _MESSAGES[study.protocol]


def most_bytes(study: Study, *, is_anonymous: bool) -> int:
    """Most bytes of a message that a participant sends: without a name, or under its own."""
    kinds = (kind for kind in messages_of(study).values() if kind.submission is not Message.submission)
    return max((kind.max_bytes for kind in kinds if kind.is_anonymous == is_anonymous), default=Message.max_bytes)


def needs_roster(study: Study) -> bool:
    """Whether a study takes only those whose keys are in its manifest: databases, and members of a secure sum."""
    return study.protocol == "sdq" or study.trust == "secure-sum"


def has_tickets(manifest: Manifest) -> bool:
    """Whether what participants send is anonymous, and admitted by tickets: where there is no issuer of tokens."""
    return is_anonymous(manifest.study) and not has_tokens(manifest)


def check_servable(manifest: Manifest, issuing: Issuing | None = None) -> None:
    """Refuse a study that cannot be served over HTTP as it is, by a coordinator with these keys: ``HOST-003``."""
    study = manifest.study
    _check_keys(manifest, issuing)
    check_delivery(manifest)
    if needs_roster(study) and not manifest.roster:
        raise SpecError(
            "HOST-003",
            f"A study of {study.protocol} with trust {study.trust} cannot be served without a roster.",
            why="Its members check each other's signatures, and so must know each other's keys beforehand.",
            fix="Give the names and keys of all members: --roster FILE",
        )


def _check_keys(manifest: Manifest, issuing: Issuing | None) -> None:
    ours = ("", "") if issuing is None else (issuing.issuer_key, issuing.gateway_key)
    for what, key, own in zip(("issuer", "gateway"), (manifest.issuer_key, manifest.gateway_key), ours, strict=True):
        if key is not None and key.hex() != own:
            raise SpecError(
                "HOST-003",
                f"The manifest's {what} key is not this coordinator's.",
                why="It could neither sign who registers nor open what is sealed to another key.",
                fix="Take both keys from GET /v1/issuing of this coordinator.",
            )


def seats_of(manifest: Manifest) -> tuple[str, ...] | None:
    """Names for holders in the order in which they enrol; None where the roster has them, or names do not matter."""
    holders = manifest.study.pfds
    return None if holders is None or manifest.roster else tuple(f"holder-{i}" for i in range(holders.n_holders))


def names_of(manifest: Manifest) -> tuple[str, ...]:
    """All that the aggregator may write to by name, in the order of their positions; none where everyone is told the same."""
    return tuple(member.name for member in manifest.roster) or seats_of(manifest) or ()


def aggregator_of(manifest: Manifest, hosted: Hosted) -> Aggregator[Any] | None:
    """The machine of a study; None for DDML, which has none.

    Raises
    ------
    SpecError
        ``SDQ-002``: a free count is asked that the study does not allow. ``MSG-008``: what was kept of them cannot be read.
    """
    study, digest, patience = manifest.study, manifest.digest, timedelta(milliseconds=hosted.patience)
    if study.protocol == "anonml":
        return AnonMLAggregator(digest, anonml.script_of(study, digest), study.participation.minimum, patience)
    if study.protocol == "sdq":
        params = sdq.params_of(study)
        terms = _terms(manifest, len(manifest.roster) if params.trust == "local" else params.minimum)
        return SDQAggregator(sdq.script_of(study), terms, patience, sdq.free_of(study), queries_of(hosted))
    if study.protocol == "pfds":
        shared = pfds.params_of(study)
        if shared.trust == "secure-sum":
            return SummingAggregator(SumScript(shared), _terms(manifest, shared.minimum), patience)
        kind = SharingAggregator if shared.variant == "paper" else TablesAggregator
        return kind(shared, digest, names_of(manifest), patience)
    return None


def answers_of(manifest: Manifest, ticket: bytes) -> tuple[int, ...]:
    """How many answers can come under a ticket in each phase; empty where that does not matter."""
    if manifest.study.protocol != "anonml":
        return ()
    script, words = anonml.script_of(manifest.study, manifest.digest), words_of(manifest.digest, ticket)
    return tuple(len(script.asked(phase, int(script.group_of(phase, words)[0]))) for phase in range(script.n_phases))


def informed(aggregator: Aggregator[Any], manifest: Manifest, n_enrolled: int, expected: Mapping[int, int]) -> Aggregator[Any]:
    """The machine, told what it can still wait for once as many as the study declares have enrolled.

    With tokens nobody knows who answers in which phase, but in a course of one phase, in which everyone answers: there as many answers can
    come as the members have together.
    """
    if not isinstance(aggregator, AnonMLAggregator) or n_enrolled < manifest.study.participation.size:
        return aggregator
    script = aggregator.script
    if has_tokens(manifest):
        if script.n_phases > 1:
            return aggregator
        answers: tuple[int, ...] = (n_enrolled * len(script.asked(0, 0)),)
    else:
        answers = tuple(expected.get(phase, 0) for phase in range(script.n_phases))
    return AnonMLAggregator(aggregator.study, script, aggregator.minimum, aggregator.patience, answers)


def _terms(manifest: Manifest, threshold: int) -> Terms:
    names, keys = zip(*((member.name, member.key) for member in manifest.roster), strict=True)
    return Terms(manifest.digest, Roster(names, keys), threshold)
