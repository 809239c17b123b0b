"""Anonymous delivery: scopes, slots, tickets, and their label text.

Participants of AnonML, and of DDML with tokens, send without a name, and each counts only as often
as the study allows. Participants, coordinators and relays compute the same values here.

scope
    The credentials that count: those issued for the manifest's epoch, or, without an epoch, for
    this study alone.
slot
    The packet of a person that a token is for: the number of the question's name, or of a DDML
    update. Each slot has a separate pseudonym. Packets of one person therefore cannot be linked
    while decisional Diffie-Hellman is hard, but a second packet for the same slot is detected.
context
    The manifest's digest with the slot, from which the pseudonym is computed. Every party computes
    it; it is not sent.
partition
    In variant ``paper`` the issuer assigns each person to a partition (batch and partition), which
    the token discloses; 0 otherwise.
ticket
    The bytes that decide the question (`shoal.protocols.anonml.assignment`): a hash of the
    pseudonym; in ``paper`` a hash for the partition.

Ref: AnonML §V.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import replace
from fractions import Fraction

import numpy as np

from shoal.crypto.credentials.tokens import TOKEN_BYTES
from shoal.errors import RemoteProtocolError, SpecError
from shoal.protocols.anonml.analysis import packet_bytes
from shoal.protocols.anonml.assignment import ticket_words
from shoal.protocols.anonml.paper import AnonMLPaperScript
from shoal.protocols.anonml.plus import AnonMLPlusScript
from shoal.protocols.anonml.quantiles import N_MEDIAN_BATCHES
from shoal.protocols.anonml.script import AnonMLScript
from shoal.study.anonml import build_script, describe_token_packets
from shoal.study.label import Statement
from shoal.study.manifest import Manifest
from shoal.study.plan import Plan, make_plan
from shoal.study.pricing import BudgetLine
from shoal.study.protocol import ENROLMENT, StudyDesign
from shoal.study.registry import get_protocol, make_design
from shoal.study.spec import Study
from shoal.text import format_count

_SCOPE, _CONTEXT = b"shoal credential 1\x00", b"shoal pseudonym 1\x00"
_NAME = b"shoal pseudonym's name 1\x00"
_TICKET, _PARTITION_TICKET = b"shoal pseudonym's ticket 1\x00", b"shoal place's ticket 1\x00"
_TICKETS_PER_DRAW = 256


def is_anonymous(study: Study) -> bool:
    """Return whether participants send without a name, admitted by tokens or by tickets."""
    return get_protocol(study).is_anonymous(study)


def has_tokens(manifest: Manifest) -> bool:
    """Return whether participants send anonymously and are admitted by tokens."""
    return is_anonymous(manifest.study) and manifest.issuer_key is not None


def has_tickets(manifest: Manifest) -> bool:
    """Return whether participants send anonymously and are admitted by tickets."""
    return is_anonymous(manifest.study) and manifest.issuer_key is None


def needs_schedule(manifest: Manifest) -> bool:
    """Return whether participants send packets with tokens, at times that the schedule decides."""
    return has_tokens(manifest) and get_protocol(manifest.study).has_packets


def check_delivery(manifest: Manifest) -> None:
    """Raise ``HOST-003`` if participants would be less anonymous than the study states.

    Coordinators check this before they serve a study, and participants before they join it.
    """
    if manifest.relay is not None and manifest.gateway_key is None:
        raise SpecError(
            "HOST-003",
            "The manifest names a relay but has no gateway key.",
            why="Messages through a relay are encrypted to the gateway key.",
        )
    if manifest.epoch is not None and not has_tokens(manifest):
        raise SpecError(
            "HOST-003",
            "The manifest has an epoch, but the study takes no tokens.",
            fix="Leave the epoch out.",
        )
    if manifest.epoch is not None and manifest.study.variant == "paper":
        raise SpecError(
            "HOST-003",
            "A study of variant paper cannot have an epoch.",
            why="Its credentials contain the partition of a person, which differs between studies.",
            fix="Leave the epoch out: credentials then count for this study alone.",
        )
    check_schedule(manifest)
    is_sealed = (
        has_tokens(manifest) and manifest.gateway_key is not None and manifest.relay is not None
    )
    if manifest.study.trust == "shuffled" and not is_sealed:
        raise SpecError(
            "HOST-003",
            "A study with trust shuffled needs tokens, a gateway and a relay.",
            why="Its answers arrive encrypted, in shuffled batches, from a relay of another party.",
            fix='Name the relay: shoal serve STUDY --relay URL; or trust = "local"',
        )


def check_schedule(manifest: Manifest) -> None:
    """Raise ``HOST-003`` if a study with packets has no schedule, or another study has one."""
    if needs_schedule(manifest) and manifest.schedule is None:
        raise SpecError(
            "HOST-003",
            "The manifest has no schedule, and the study has anonymous packets.",
            why="The time of a packet must not depend on what the coordinator says later.",
            fix='Publish the study with shoal serve, or add "schedule" with the keys "opens" and '
            '"window", in milliseconds.',
        )
    if manifest.schedule is not None and not needs_schedule(manifest):
        raise SpecError(
            "HOST-003",
            "The manifest has a schedule, but the study has no anonymous packets.",
            fix="Leave the schedule out.",
        )


def compute_scope(manifest: Manifest) -> bytes:
    """Return the 32 bytes to which the credentials of a study are bound."""
    if manifest.epoch is None:
        return compute_study_scope(manifest.digest)
    return hashlib.sha256(_SCOPE + b"epoch" + manifest.epoch.encode()).digest()


def compute_study_scope(study: bytes) -> bytes:
    """Return the scope of a study without an epoch, from its digest."""
    return hashlib.sha256(_SCOPE + b"study" + study).digest()


MEMBERS_PER_PERSON = 10
"""Most registered keys for each person that a study declares (``size``).

A person may lose a key and register again, and more people may come than were declared. A stranger
cannot fill the list of members without end. Invitations set a smaller limit.
"""


def compute_max_members(size: int) -> int:
    """Return how many keys may register in a study that declares ``size`` people.

    The limit of an epoch is the sum over its studies.

    Examples
    --------
    >>> compute_max_members(60)
    600
    """
    return MEMBERS_PER_PERSON * size


def hash_pseudonym(pseudonym: bytes) -> bytes:
    """Return the public name of a packet under a pseudonym, 32 bytes.

    A coordinator stores it and publishes it to show that the packet arrived.
    """
    return hashlib.sha256(_NAME + pseudonym).digest()


def compute_min_batch(manifest: Manifest, phase: int, script: AnonMLScript | None = None) -> int:
    """Return the fewest packets of a phase that a relay hands over together.

    With trust ``shuffled`` the guarantee relies on a batch of the study's minimum. Otherwise it is
    the number of packets of the minimum participation: a larger batch might never fill.
    """
    study = manifest.study
    minimum = study.participation.minimum
    if study.trust == "shuffled":
        return minimum
    script = script or build_script(study, manifest.digest)
    return max(
        1,
        math.floor(minimum * _compute_phase_share(script, phase))
        * len(script.list_question_numbers(phase, 0)),
    )


def _compute_phase_share(script: AnonMLScript, phase: int) -> Fraction:
    """Return the share of the people who answer in a phase."""
    if isinstance(script, AnonMLPlusScript):
        return sum((slot.share for slot in script.slots if slot.phase == phase), Fraction(0))
    return Fraction(1, N_MEDIAN_BATCHES if phase < script.n_phases - 1 else 1)


class TokenSlots:
    """The packets that a person can send in a study, each for a question or an update.

    Parameters
    ----------
    manifest
        A study of AnonML, or of DDML with admission by tokens.

    Attributes
    ----------
    n_slots
        Number of packets that a person can send.
    n_credential_partitions
        Number of partitions; the issuer draws one for each person who registers.
    """

    def __init__(self, manifest: Manifest, design: StudyDesign | None = None) -> None:
        self.digest = manifest.digest
        design = design or make_design(manifest.study, manifest.digest)
        self._script: AnonMLScript | None = design.script
        self._question_names = () if self._script is None else tuple(sorted(self._script.prices))
        self._tickets: dict[int, bytes] = {}
        self._n_drawn = 0
        self.n_slots = (
            manifest.study.privacy.n_updates if self._script is None else len(self._question_names)
        )
        self.n_credential_partitions = 1
        if isinstance(self._script, AnonMLPaperScript):
            self.n_credential_partitions = self._script.params.n_partitions * (
                N_MEDIAN_BATCHES if self._script.n_steps else 1
            )

    def find_question_slot(self, phase: int, question: int) -> int:
        """Return the slot of an answer; raise ``ANONML-001`` if the phase has no such question."""
        assert self._script is not None
        try:
            return self.find_slot(self._script.question_name(phase, question))
        except (IndexError, ValueError):
            raise RemoteProtocolError(
                "ANONML-001", f"Phase {phase} has no question {question}."
            ) from None

    def find_slot(self, name: str) -> int:
        """Return the slot of a question, by its name in a person's ledger."""
        return self._question_names.index(name)

    def encode_context(self, slot: int) -> bytes:
        """Return the bytes from which the pseudonym of a slot is computed."""
        return _CONTEXT + self.digest + slot.to_bytes(4, "big")

    def compute_ticket(self, pseudonym: bytes, partition: int) -> bytes:
        """Return the ticket for a pseudonym and a partition, both of which a packet discloses."""
        if not isinstance(self._script, AnonMLPaperScript):
            return hashlib.sha256(_TICKET + self.digest + pseudonym).digest()
        if not 0 <= partition < self.n_credential_partitions:
            raise RemoteProtocolError(
                "ANONML-001",
                f"A study of {format_count(self.n_credential_partitions, 'partition')} has no "
                f"partition {partition}.",
            )
        while partition not in self._tickets:
            self._draw_tickets(self._script)
        return self._tickets[partition]

    def _draw_tickets(self, script: AnonMLPaperScript) -> None:
        """Assign the next tickets of a counter to partitions that have no ticket yet.

        All partitions share one counter.
        """
        counters = range(self._n_drawn, self._n_drawn + _TICKETS_PER_DRAW)
        tickets = [
            hashlib.sha256(_PARTITION_TICKET + self.digest + counter.to_bytes(4, "big")).digest()
            for counter in counters
        ]
        partitions = (
            script.assign_positions(
                np.concatenate([ticket_words(self.digest, ticket) for ticket in tickets])
            )
            % self.n_credential_partitions
        )
        for partition, ticket in zip(partitions.tolist(), tickets, strict=True):
            self._tickets.setdefault(partition, ticket)
        self._n_drawn = counters.stop


TOKEN_UNDO = (
    "You may leave at any time. What was already sent cannot be taken back. Your registration "
    "stays, and nothing shows that you left."
)

_PLACEHOLDER_KEY = b"\x80".ljust(96, b"\x00")
"""Stand-in for an issuer's key, for a label alone: no coordinator has it."""

_SEPARATE_DIGEST = "has another digest, on the label that participants read"
HEAD_BYTES, PACKET_MULTIPLE = TOKEN_BYTES + 9, 64
_ADDRESS = {
    None: "If you connect directly, the coordinator sees your IP address and could link your data "
    "to it",
    "direct": "You connect directly: the coordinator sees your IP address and could link your data "
    "to it",
    "ohttp": "The relay sees your IP address and encrypted bytes, the coordinator sees the relay's "
    "address: only both together could link your data to you",
    "tor": "Tor hides your IP address; an observer of both ends of its network could link your "
    "data to you by its timing",
}
"""Network path -> who could link data to a sender."""


def make_offer_statement(
    manifest: Manifest,
    plan: Plan | None = None,
    budget: BudgetLine | None = None,
    via: str | None = None,
) -> Statement:
    """Return the label of an offered study, with the wording for tokens and network paths.

    Parameters
    ----------
    plan
        The study's plan, if the caller has it already.
    budget
        The participant's limit and its use, if there is a ledger.
    via
        Network path to the coordinator: ``direct``, ``ohttp`` or ``tor``; None if not known.
    """
    plan = plan or make_plan(manifest.study, manifest.digest)
    statement = plan.make_statement(budget, manifest.short_digest)
    if not has_tokens(manifest):
        return statement
    leaves, n_bytes = statement.leaves, statement.bytes
    if plan.script is not None:
        leaves = describe_token_packets(manifest.study, plan.script)
        assert n_bytes is not None
        n_packets = len(plan.script.prices)
        n_bytes += n_packets * (compute_packet_size(plan.script) - packet_bytes(plan.script))
    elif n_bytes is not None:
        n_bytes += manifest.study.privacy.n_updates * TOKEN_BYTES
    return replace(
        statement,
        leaves=leaves,
        bytes=n_bytes,
        seen_by=_describe_token_recipients(manifest, plan, via),
        not_covered=tuple(_list_token_exclusions(statement, manifest, plan, via)),
        undo=TOKEN_UNDO,
    )


def make_offered_manifest(draft: Manifest, *, uses_tickets: bool = False) -> Manifest:
    """Return a study as ``shoal serve`` will offer it, for the wording of its label alone.

    Its digest has no meaning, since a coordinator's keys are not in it.

    Parameters
    ----------
    draft
        The study without keys.
    uses_tickets
        True if anonymous packets will be admitted by tickets, not by tokens.

    Raises
    ------
    SpecError
        ``HOST-003``: the study cannot be served with tickets.
    """
    if uses_tickets:
        check_delivery(draft)
        return draft
    return replace(draft, issuer_key=_PLACEHOLDER_KEY) if is_anonymous(draft.study) else draft


def make_draft_statement(
    draft: Manifest, plan: Plan | None = None, *, uses_tickets: bool = False
) -> Statement:
    """Return the label of a study that is not served yet, with the digest of its draft.

    The words are those that participants will read.
    """
    plan = plan or make_plan(draft.study, draft.digest)
    return replace(
        make_offer_statement(make_offered_manifest(draft, uses_tickets=uses_tickets), plan),
        digest=draft.short_digest,
    )


def explain_draft_digest(draft: Manifest, *, uses_tickets: bool = False) -> str | None:
    """Return why a served study will have another digest; None if it will have the same.

    The words follow "digest".
    """
    if has_tokens(make_offered_manifest(draft, uses_tickets=uses_tickets)):
        return (
            "of the study without keys; a coordinator adds its keys, and the served study "
            f"{_SEPARATE_DIGEST}"
        )
    if get_protocol(draft.study).holders.are_organisations:
        return (
            "of the study without keys; if a roster adds the keys of its members, the served "
            f"study {_SEPARATE_DIGEST}"
        )
    return None


def compute_packet_size(script: AnonMLScript) -> int:
    """Return the size of a packet that `shoal.transport.packets` makes, in bytes."""
    return -(-(HEAD_BYTES + packet_bytes(script)) // PACKET_MULTIPLE) * PACKET_MULTIPLE


def _describe_token_recipients(manifest: Manifest, plan: Plan, via: str | None) -> str:
    study = manifest.study
    n_partitions = TokenSlots(manifest, plan.design).n_credential_partitions
    who, what = get_protocol(study).describe_token_recipients(study)
    epoch = "" if manifest.epoch is None else f" of {manifest.epoch}"
    same = "" if n_partitions == 1 else f" in the same of {format_count(n_partitions, 'partition')}"
    few = (
        f". Nothing is sent while there are fewer than {study.participation.minimum:,}"
        if plan.script is not None
        else ""
    )
    return (
        f"{who}. The token proves that {what} comes from a registered member{epoch}{same}, but not "
        "from which one; not even the coordinator knows. The list of members is public, and you "
        f"see how many there are{few}. {_ADDRESS[via]}. The guarantee does not rely on your being "
        "anonymous"
    )


def _list_token_exclusions(
    statement: Statement, manifest: Manifest, plan: Plan, via: str | None
) -> list[str]:
    registered = (
        "that you registered: the public list of members contains a key that was made for you and "
        "for this list alone"
    )
    items = [registered if item == ENROLMENT else item for item in statement.not_covered]
    # The first phase can be opened in one way only. Later ones are compared with the relay's.
    if plan.script is not None and plan.script.n_phases > 1 and via != "ohttp":
        items.append(
            "that you are asked the same question as others, if you use no relay: there is nothing "
            "to compare it with, and a question that only you get would show which packet is yours"
        )
    return [
        *items,
        "the link between you and your data, if few people have registered or the others work "
        "together with the coordinator",
        *_list_linkable_packets(manifest, TokenSlots(manifest, plan.design).n_slots),
    ]


def _list_linkable_packets(manifest: Manifest, n_slots: int) -> list[str]:
    """Return what a future computer could link: packets that share one secret; none if one does.

    Notes
    -----
    One pseudonym of a secret hides the secret's owner from any amount of computation. Two or more
    are unlinkable only while decisional Diffie-Hellman is hard (decision 13).
    """
    if manifest.epoch is None and n_slots == 1:
        return []
    packets = f"your {format_count(n_slots, 'packet')}" if n_slots > 1 else "your packet"
    studies = "" if manifest.epoch is None else f" and those of other studies of {manifest.epoch}"
    return [
        f"that {packets}{studies} come from one person, if someone keeps them until a computer, "
        "such as a large quantum computer, can break the tokens' cryptography. It would link them "
        "with each other, not with your registration"
    ]
