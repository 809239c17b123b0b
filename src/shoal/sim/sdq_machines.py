"""All machines of an SDQ study in one place, for tests and measurements: the real ones, with identities that anyone can compute.

Never for a real study: whoever knows the seed can sign in the name of every database.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from shoal.crypto.roster import Identity, Roster
from shoal.entropy import SeededEntropy
from shoal.protocols.sdq.aggregator import SDQAggregator
from shoal.protocols.sdq.params import Table
from shoal.protocols.sdq.peer import SDQPeer
from shoal.protocols.sdq.queries import Free, Query
from shoal.protocols.sdq.script import Script
from shoal.protocols.sums.member import Member
from shoal.protocols.sums.terms import Terms


def machines(
    script: Script,
    tables: Sequence[Table],
    seed: int | str = 0,
    *,
    patience: timedelta = timedelta(minutes=1),
    free: Free | None = None,
    queries: tuple[Query, ...] = (),
    peer: type[SDQPeer] = SDQPeer,
    aggregator: type[SDQAggregator] = SDQAggregator,
) -> tuple[SDQAggregator, dict[str, SDQPeer]]:
    """The miner, and a database for each table, called ``peer-0``, ``peer-1`` and so on; for ``run_local`` and ``shoal.sim.network``.

    Parameters
    ----------
    script
        The course of the study.
    tables
        The rows of each database.
    seed
        What identities and the study's digest follow from.
    patience, free, queries
        As the aggregator takes them.
    peer, aggregator
        The classes of the machines.

    Examples
    --------
    >>> import numpy as np
    >>> from shoal.domain import Categorical, Schema
    >>> from shoal.protocols.base import run_local
    >>> from shoal.protocols.sdq.paper import PaperScript, Params
    >>> schema = Schema([Categorical("wind", ["weak", "strong"])], label=Categorical("play", ["no", "yes"]))
    >>> tables = [Table(np.zeros((9, 1), np.int64), np.ones(9, np.int64))] * 3
    >>> script = PaperScript(Params(schema, 1.0, 27, n_databases=3, minimum=3, variant="paper"))
    >>> run_local(*machines(script, tables), SeededEntropy(1)).results["peer-0"]
    2
    """
    params, entropy = script.params, SeededEntropy(seed).spawn("sdq machines")
    names = tuple(f"peer-{i}" for i in range(len(tables)))
    identities = [Identity.from_seed(entropy.spawn(name).bytes(32)) for name in names]
    roster = Roster(names, tuple(identity.public for identity in identities))
    threshold = len(names) if params.trust == "local" else params.minimum
    terms = Terms(entropy.spawn("study").bytes(32), roster, threshold)
    peers = {
        name: peer(script, Member(terms, i, identity), table, free)
        for i, (name, identity, table) in enumerate(zip(names, identities, tables, strict=True))
    }
    return aggregator(script, terms, patience, free, queries), peers
