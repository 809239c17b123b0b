"""All that a holder of PFDS shares, drawn again and again with one unit there and without it.

Variant paper: the tree, the counts and the data (`shoal.audit.trees`). Trust local: a holder's tables. Secure sums: all sums, with those
who collude (`shoal.audit.shares`). Some are run in full, with messages and ledgers; for the others the peers are asked for what they would
answer, for many studies at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from shoal.audit import shares, trees
from shoal.audit.looks import Look, Seen, evidence, ranked
from shoal.domain import Categorical
from shoal.entropy import Entropy
from shoal.privacy.accountant import Loss
from shoal.privacy.events import Event
from shoal.privacy.rounding import grains_up
from shoal.protocols.base import START, Account, MemoryLedger, Started, settle
from shoal.protocols.pfds.local import TABLES, price
from shoal.protocols.pfds.messages import Tables
from shoal.protocols.pfds.params import GRID, Floats, Ints, Params, Rows
from shoal.protocols.pfds.sharing_peer import SharingPeer
from shoal.protocols.pfds.summing_peer import SummingPeer
from shoal.protocols.pfds.tables_peer import TablesPeer
from shoal.study.manifest import Manifest
from shoal.study.pfds import params_of
from shoal.study.spec import Study

MakeTables = Callable[[Params, bytes, int, Rows], TablesPeer]
"""What makes a peer of trust local, of parameters, digest, place and rows: the class itself, or one that a doubter has altered."""

RUNS = 1
"""Peers or studies that are run in full, with each of the neighbours: ten seconds for a study of sums among fifty holders."""
DATA = 2000
"""Holders of variant paper whose data are looked at: half a minute."""
_BLOCK = 1 << 12
_ALL = "all that was released"


@dataclass(frozen=True, eq=False)
class Drawn:
    """What was seen of many peers or studies with the same rows.

    Parameters
    ----------
    told
        In words what was looked at, and what each says for the unit, ``(n,)``. First all that was released; then the answer to each
        question, in order; then what has no price of its own.
    charged
        What ledgers have counted, in grains.
    packets
        Most answers of one peer.
    """

    told: Mapping[str, Floats]
    charged: tuple[int, ...]
    packets: int


def draw_sums(stage: shares.Sums, which: int, n: int, entropy: Entropy) -> Drawn:
    """So many studies of sums, `RUNS` of them in full."""
    runs = [stage.run(which, entropy) for _ in range(RUNS)]
    said = np.concatenate([[run.evidence for run in runs], stage.draw(which, n - RUNS, entropy)])
    charged = tuple(total for run in runs for total in run.charged)
    return Drawn(_told(said, stage.prices), charged, max(run.packets for run in runs))


def many_tables(params: Params, n: int) -> Params:
    """The figures of a study whose features have a cell for each of n studies, which is the unit's cell there."""
    names, values = params.schema.names, [str(i) for i in range(n)]
    return replace(params, schema=replace(params.schema, features=tuple(Categorical(name, values, missing=False) for name in names)))


def draw_tables(study: bytes, params: Params, which: int, n: int, entropy: Entropy, make_peer: MakeTables) -> Drawn:
    """So many holders with trust local, and `RUNS` more in full; those are started twice."""
    charged, packets = [], 0
    for _ in range(RUNS):
        peer, ledger = make_peer(params, study, 0, shares.unit_and_others(params)[which]), MemoryLedger()
        account, state = Account(ledger, study, "the rows", "the aggregator", "an audit"), peer.initial()
        for _ in range(2):
            state, _ = settle(peer, state, Started(), START, entropy, account)
        packets = max(packets, len(ledger.entries))
        charged.append(sum(entry.cost for entry in ledger.entries.values()))
    wide = many_tables(params, _BLOCK)
    units = np.repeat(wide.starts[:-1] + np.arange(_BLOCK)[:, np.newaxis], params.max_rows * which, axis=0)
    sides: Ints = np.zeros((len(units), params.n_sides), np.int64)
    sides[:, -1] = GRID
    said = [np.zeros(0)]
    for _ in range(-(-n // _BLOCK)):
        peer = make_peer(wide, study, 0, Rows(units, sides))
        message = peer.answer(peer.initial(), TABLES, entropy)
        assert isinstance(message, Tables)
        seen = message.counts.expect("int64", message.counts.count).reshape(-1, _BLOCK, params.n_sides)[:, :, -1].T
        sums = np.repeat([[0], [GRID * params.max_rows]], seen.shape[1], axis=1)
        said.append(evidence(price(params), seen, sums))
    return Drawn({_ALL: np.concatenate(said)[:n]}, tuple(charged), packets)


def draw_trees(stage: trees.Stage, which: int, n: int, entropy: Entropy) -> Drawn:
    """So many holders of variant paper, and `RUNS` more in full; at most `DATA` of them share data."""
    runs, said = [stage.run(which, entropy) for _ in range(RUNS)], stage.draw(which, n, entropy)
    told = _told(said, stage.prices) | stage.share(which, min(n, DATA), entropy)
    return Drawn(told, tuple(run.charged for run in runs), max(run.packets for run in runs))


def _told(said: Floats, prices: Mapping[str, Event]) -> dict[str, Floats]:
    return {_ALL: said.sum(axis=1)} | {f"the answer to {question}": said[:, i] for i, question in enumerate(prices)}


def look(study: Study, claim: Loss, whole: Loss, samples: int, entropy: Entropy, make_peer: Callable[..., Any] | None = None) -> Seen:
    """Draw so many peers or studies with a unit and without it, and compare all that is shared.

    Parameters
    ----------
    study
        The study.
    claim, whole
        What the label states, and what it says that everything costs; of what ledgers have counted, the sum is reported that misses it.
    samples, entropy, make_peer
        As for the audit.

    Notes
    -----
    The answer to each question is held against its own price, too. Where the noise is Gaussian, everything is held against the sum of rhos
    that the label's epsilon comes from, besides (epsilon, delta) itself.
    """
    params, digest = params_of(study), Manifest(study).digest
    prices: Mapping[str, Event]
    if params.variant == "paper":
        of_trees = trees.Stage(digest, params, make_peer or SharingPeer)
        drawn = [draw_trees(of_trees, which, samples, entropy) for which in (0, 1)]
        some = f"{min(samples, DATA)} with data, {RUNS} in full"
        prices, tried = of_trees.prices, f"each of two tables, on trees whose upper levels are known; {some}"
    elif params.trust == "local":
        drawn = [draw_tables(digest, params, which, samples, entropy, make_peer or TablesPeer) for which in (0, 1)]
        prices, tried = {TABLES: price(params)}, f"each of two tables, and {RUNS} in full"
    else:
        of_sums = shares.Sums(digest, params, make_peer or SummingPeer)
        drawn = [draw_sums(of_sums, which, samples, entropy) for which in (0, 1)]
        prices, tried = of_sums.prices, f"each of two tables, {RUNS} of them in full, with messages and secure sums"
    rows = (f"all {params.unit}s but one", f"all {params.unit}s")
    parts = {f"the answer to {question}": Loss(event.scope, event.epsilon, event.delta, "price") for question, event in prices.items()}
    looks = []
    for seen_in, first in drawn[0].told.items():
        keys = ranked(first, drawn[1].told[seen_in])
        is_part = seen_in in parts
        looks.append(Look(seen_in, rows, *keys, parts.get(seen_in, claim), is_part, by_rho=is_part and params.delta > 0))
        if params.delta and not is_part:
            looks.append(Look(f"{seen_in}, as a zero-concentrated sum", rows, *keys, claim, by_rho=True))
    charged = [total for one in drawn for total in one.charged]
    worst = max(charged, key=lambda total: abs(total - grains_up(whole.epsilon)))
    return Seen(tuple(looks), worst, max(one.packets for one in drawn), None, tried)
