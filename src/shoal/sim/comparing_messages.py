"""What one participant sends in a study: the bytes and messages of the real machines, with the simulated rows in their hands.

Bytes are those of messages as the codec writes them; what HTTP, tokens and sealed packets add to them depends on the way that they take.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from shoal.entropy import SeededEntropy
from shoal.messages.codec import encode
from shoal.mpc.children import Children
from shoal.protocols.base import AGGREGATOR, Aggregator, Computer, Peer, run_local
from shoal.protocols.pfds.local import TABLES
from shoal.protocols.pfds.paper import Points
from shoal.protocols.pfds.params import Params as PFDSParams
from shoal.protocols.pfds.params import Rows
from shoal.protocols.sdq.joining import has_choices
from shoal.protocols.sdq.params import Params as SDQParams
from shoal.protocols.sdq.params import Table
from shoal.protocols.sdq.scripts import script_of
from shoal.sim import pfds_machines, sdq_machines
from shoal.sim.holders import holders_of, is_used
from shoal.sim.runs import Split, Task
from shoal.sim.sdq import members_of
from shoal.study.conditions_sums import Members
from shoal.study.plan import Plan
from shoal.study.wording import n_bytes

MOST_MEMBERS = {"secure-sum": 25, "local": 100}
"""Machines of more members take longer than all else that is compared; in a sum each has a key with every other."""
_PER_UPDATE = 2
"""A device asks for a model, and sends it back."""


@dataclass(frozen=True)
class Sent:
    """What one participant sends, on average over all of them."""

    bytes: float
    messages: float


def sent_by_one(plan: Plan, task: Task, split: Split, *, joint: bool) -> Sent | None:
    """What a participant of a planned study sends; None where that is not known without more work than it is worth.

    Parameters
    ----------
    plan
        Of a person or a device it says how much leaves, at most.
    task, split
        One run, and the rows; databases and organisations are run as machines, of which everything that leaves is counted.
    joint
        Whether a committee that computes jointly is run too, in processes of its own, which takes a second or more for each attribute of a
        tree. What its members send each other is most of all that they send, so that without it nothing is said.
    """
    params = task.params
    if plan.params is not None or plan.script is not None:
        size = n_bytes(plan.study, plan.script, plan.params)
        assert size is not None, "what people and devices send is known beforehand"
        n = _PER_UPDATE * plan.params.n_updates if plan.params is not None else len(plan.events)
        return Sent(float(size), float(n))
    assert isinstance(params, SDQParams | PFDSParams)
    is_joint = isinstance(params, SDQParams) and (params.noise == "two-selected" or has_choices(params))
    if _members(params).n > MOST_MEMBERS[params.trust] or (is_joint and not joint):
        return None
    if isinstance(params, PFDSParams) and params.trust == "local" and params.variant == "plus":
        return _tables(params, task, split)
    return _counted(_machines(params, task, split), task.entropy.spawn("machines"), Children() if is_joint else nullcontext())


def _members(params: SDQParams | PFDSParams) -> Members:
    if isinstance(params, SDQParams):
        return members_of(params)
    return Members("pfds", "n_holders", "holders", params.n_holders, params.minimum, params.max_colluders)


def _machines(params: SDQParams | PFDSParams, task: Task, split: Split) -> tuple[Aggregator[Any], Mapping[str, Peer[Any]]]:
    """The machines of all members, each with the rows that it may use."""
    members = _members(params)
    whose = holders_of(members, len(split.labels), split.holders, split.n_holders, task.entropy.spawn("machines", "rows"))
    used = is_used(whose, split.people, params.max_rows)
    parts = []
    for member in range(members.n):
        mine = np.flatnonzero(used & (whose == member))
        parts.append(({name: column[mine] for name, column in split.asked.items()}, split.labels[mine]))
    if isinstance(params, SDQParams):
        return sdq_machines.machines(script_of(params), [Table.of(params, *part) for part in parts])
    if params.variant == "paper":
        return pfds_machines.paper_machines(params, [Points.of(params, *part) for part in parts])
    return pfds_machines.machines(params, [Rows.of(params, *part) for part in parts])


def _tables(params: PFDSParams, task: Task, split: Split) -> Sent:
    """What holders with trust local send is one message each; the rest of their work, which is most of it, happens at home."""
    _, peers = _machines(params, task, split)
    sizes = [len(encode(peer.answer(peer.initial(), TABLES, task.entropy.spawn(name)))) for name, peer in peers.items()]
    return Sent(sum(sizes) / len(sizes), 1.0)


def _counted(
    machines: tuple[Aggregator[Any], Mapping[str, Peer[Any]]], entropy: SeededEntropy, computing: AbstractContextManager[Computer | None]
) -> Sent | None:
    """Run machines to their end, and count what peers send; None where they do not come to one, whose messages are not all there are."""
    with computing as computer:
        outcome = run_local(*machines, entropy, computer=computer)
    if outcome.aborted or outcome.failed:
        return None
    sizes = [len(sent.payload) for sent in outcome.sent if sent.sender != AGGREGATOR]
    n = len(machines[1])
    return Sent(sum(sizes) / n, len(sizes) / n)
