"""The label of a study as it is offered: what tokens change in it, and who sees the sender's address."""

from __future__ import annotations

from dataclasses import replace

from shoal.crypto.tokens import TOKEN_BYTES
from shoal.names import counted
from shoal.protocols.anonml.analysis import packet_bytes
from shoal.protocols.anonml.script import Script
from shoal.study.anonymity import Slots, check_delivery, has_tokens, is_anonymous
from shoal.study.label import Statement
from shoal.study.manifest import Manifest
from shoal.study.parts import BudgetLine
from shoal.study.plan import Plan, make_plan
from shoal.study.wording import leaves_by_tokens

UNDO = "You may leave at any time; what was already sent stays sent. Your registration stays too, and nobody is told that you left."

_STAND_IN = b"\x80".ljust(96, b"\x00")
"""In the place of an issuer's key, for a label alone: no coordinator has it."""

_DIGEST_OF_ITS_OWN = "has a digest of its own, on the label that participants read"
_HEAD_BYTES, _GRAIN = TOKEN_BYTES + 9, 64
_ADDRESS = {
    None: "Who sees your address depends on how you join: directly the coordinator does, and could tell by it what is yours",
    "direct": "But you join directly: the coordinator sees your address, and could tell by it what is yours",
    "ohttp": "The relay sees your address and sealed bytes, the coordinator the relay's address: both together could tell what is yours",
    "tor": "Tor hides your address; whoever watches both ends of its network could tell by the time what is yours",
}


def statement_of(manifest: Manifest, plan: Plan | None = None, budget: BudgetLine | None = None, via: str | None = None) -> Statement:
    """The label of a study that is offered.

    Parameters
    ----------
    manifest, plan
        The study, and its plan where that is made already.
    budget
        The participant's limit and what is used of it, where there is a ledger.
    via
        How the participant reaches the coordinator: ``direct``, ``ohttp`` or ``tor``; None where that is not known.
    """
    plan = plan or make_plan(manifest.study, manifest.digest)
    statement = plan.statement(budget, manifest.short)
    if not has_tokens(manifest):
        return statement
    leaves, n_bytes = statement.leaves, statement.bytes
    if plan.script is not None:
        leaves = leaves_by_tokens(manifest.study, plan.script)
        assert n_bytes is not None
        n_packets = len(plan.script.prices)
        n_bytes += n_packets * (packet_size(plan.script) - packet_bytes(plan.script))
    elif n_bytes is not None:
        n_bytes += manifest.study.privacy.n_updates * TOKEN_BYTES
    return replace(
        statement,
        leaves=leaves,
        bytes=n_bytes,
        seen_by=_seen_by(manifest, via),
        not_covered=tuple(_not_covered(statement)),
        undo=UNDO,
    )


def as_offered(draft: Manifest, *, tickets: bool = False) -> Manifest:
    """A study as ``shoal serve`` will offer it, to word its label: its digest stands for nothing, since no coordinator's keys are in it.

    Parameters
    ----------
    draft
        The study without keys.
    tickets
        Whether anonymous packets will be admitted by tickets, and not by tokens.

    Raises
    ------
    SpecError
        ``HOST-003``: the study cannot be served with tickets.
    """
    if tickets:
        check_delivery(draft)
        return draft
    return replace(draft, issuer_key=_STAND_IN) if is_anonymous(draft.study) else draft


def statement_of_draft(draft: Manifest, plan: Plan | None = None, *, tickets: bool = False) -> Statement:
    """The label of a study that is not served yet, in the words that participants will read, with the digest that it has so far."""
    plan = plan or make_plan(draft.study, draft.digest)
    return replace(statement_of(as_offered(draft, tickets=tickets), plan), digest=draft.short)


def remark_on_digest(draft: Manifest, *, tickets: bool = False) -> str | None:
    """Why the digest of a draft is not that of the study that is served, in words that go on from "digest"; None where it is."""
    if has_tokens(as_offered(draft, tickets=tickets)):
        return f"of the study without keys; a coordinator adds its keys, and what it serves {_DIGEST_OF_ITS_OWN}"
    if draft.study.protocol in ("sdq", "pfds"):
        return f"of the study without keys; where a roster adds those of its members, what is served {_DIGEST_OF_ITS_OWN}"
    return None


def packet_size(script: Script) -> int:
    """The size of a packet, as `shoal.transport.packets` makes it."""
    return -(-(_HEAD_BYTES + packet_bytes(script)) // _GRAIN) * _GRAIN


def _seen_by(manifest: Manifest, via: str | None) -> str:
    study, places = manifest.study, Slots(manifest).n_places
    if study.protocol == "ddml":
        who, what = "the coordinator, every device that draws while your update is in the model, and everyone they show it to", "an update"
    elif study.trust == "shuffled":
        who, what = "the coordinator, in one batch with everyone else's; and everyone it shows it to", "a packet"
    else:
        who, what = "the coordinator and everyone it shows it to", "a packet"
    among = "the members" if manifest.epoch is None else f"the members of {manifest.epoch}"
    same = "" if places == 1 else f" to whom the coordinator gave the same of {counted(places, 'place')}"
    return (
        f"{who}. By its token {what} is from one of {among}{same}, and not even the coordinator can tell from which; the list of members "
        f"is public, and you are told how many there are. {_ADDRESS[via]}. The guarantee does not rest on your being unknown"
    )


def _not_covered(statement: Statement) -> list[str]:
    registered = "that you registered: the list of members has a key of yours, made for this list alone"
    items = [registered if item == "that you enrolled" else item for item in statement.not_covered]
    return [*items, "who sent what, where few have registered, or the others work together with the coordinator"]
