"""All machines of a PFDS study in one place, for tests and measurements: the real ones, with identities that anyone can compute.

Never for a real study: whoever knows the seed can sign in the name of every holder.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from shoal.crypto.roster import Identity, Roster
from shoal.entropy import SeededEntropy
from shoal.protocols.machines import Aggregator, Peer
from shoal.protocols.pfds.paper import Points
from shoal.protocols.pfds.params import Params, Rows
from shoal.protocols.pfds.publishing import check_number
from shoal.protocols.pfds.reader import Reader
from shoal.protocols.pfds.sharing_aggregator import SharingAggregator
from shoal.protocols.pfds.sharing_peer import SharingPeer, SharingReader
from shoal.protocols.pfds.summing_aggregator import SummingAggregator
from shoal.protocols.pfds.summing_peer import SummingPeer
from shoal.protocols.pfds.sums import SumScript
from shoal.protocols.pfds.tables_aggregator import TablesAggregator
from shoal.protocols.pfds.tables_peer import TablesPeer
from shoal.protocols.sums.member import Member
from shoal.protocols.sums.terms import Terms

MINUTE = timedelta(minutes=1)


def machines(
    params: Params,
    rows: Sequence[Rows],
    seed: int | str = 0,
    *,
    readers: Sequence[Rows | None] = (),
    patience: timedelta = MINUTE,
    peer: type[Any] | None = None,
    aggregator: type[Any] | None = None,
) -> tuple[Aggregator[Any], dict[str, Peer[Any]]]:
    """The aggregator of variant plus, a peer for each holder that shares and one for each that only reads.

    They are called ``peer-0``, ``peer-1`` and so on, and ``reader-0`` and so on; for ``run_local`` and ``shoal.sim.network``.

    Parameters
    ----------
    params
        The public figures of the study.
    rows
        The rows of each holder that shares.
    seed
        What identities and the study's digest follow from.
    readers
        The rows of each that only reads; None for one without any.
    patience
        How long the aggregator waits for each step.
    peer, aggregator
        Other classes in place of those of the study's trust.

    Raises
    ------
    SpecError
        ``PFDS-005``: there are rows of more or fewer holders than the study has.

    Examples
    --------
    >>> import numpy as np
    >>> from shoal.domain import Categorical, Schema
    >>> from shoal.protocols.base import run_local
    >>> schema = Schema([Categorical("wind", ["weak", "strong"], missing=False)], label=Categorical("play", ["no", "yes"]))
    >>> params = Params(schema, 1.0, 60, n_holders=3, minimum=3)
    >>> rows = Rows.of(params, {"wind": np.arange(20) % 2}, np.arange(20) % 2)
    >>> run_local(*machines(params, [rows] * 3), SeededEntropy(1)).results["peer-0"]
    Home(of the holder's own rows: never leaves)
    """
    assert params.variant == "plus"
    entropy, names = SeededEntropy(seed).spawn("pfds machines"), _names(params, len(rows))
    study = entropy.spawn("study").bytes(32)
    reading = {f"reader-{i}": Reader(params, study, own) for i, own in enumerate(readers)}
    if params.trust == "local":
        sharing = {name: (peer or TablesPeer)(params, study, i, rows[i]) for i, name in enumerate(names)}
        return (aggregator or TablesAggregator)(params, study, names, patience), {**sharing, **reading}
    identities = [Identity.from_seed(entropy.spawn(name).bytes(32)) for name in names]
    terms = Terms(study, Roster(names, tuple(identity.public for identity in identities)), params.minimum)
    script = SumScript(params)
    sharing = {name: (peer or SummingPeer)(script, Member(terms, i, identities[i]), rows[i]) for i, name in enumerate(names)}
    return (aggregator or SummingAggregator)(script, terms, patience), {**sharing, **reading}


def paper_machines(
    params: Params,
    points: Sequence[Points],
    seed: int | str = 0,
    *,
    n_readers: int = 0,
    patience: timedelta = MINUTE,
    peer: type[SharingPeer] = SharingPeer,
    aggregator: type[SharingAggregator] = SharingAggregator,
) -> tuple[SharingAggregator, dict[str, Peer[Any]]]:
    """The same for variant paper; ``points`` are the rows of each holder that shares.

    Examples
    --------
    >>> import numpy as np
    >>> from shoal.domain import Categorical, Numeric, Schema
    >>> from shoal.protocols.base import run_local
    >>> schema = Schema([Numeric("age", 0, 9), Numeric("size", 0, 9)], label=Categorical("ill", ["no", "yes"]))
    >>> params = Params(schema, 1.0, 60, n_holders=3, minimum=3, variant="paper")
    >>> points = Points(np.arange(40.0).reshape(20, 2) % 9, np.arange(20) % 2)
    >>> list(run_local(*paper_machines(params, [points] * 3), SeededEntropy(1)).results["peer-0"].datasets)
    ['peer-0', 'peer-1', 'peer-2']
    """
    names = _names(params, len(points))
    study = SeededEntropy(seed).spawn("pfds machines").spawn("study").bytes(32)
    sharing = {name: peer(params, study, name, own) for name, own in zip(names, points, strict=True)}
    reading = {f"reader-{i}": SharingReader(params, study) for i in range(n_readers)}
    return aggregator(params, study, names, patience), {**sharing, **reading}


def _names(params: Params, n: int) -> tuple[str, ...]:
    # Before a peer is made: one too many has no attributes to count.
    check_number(params, n)
    return tuple(f"peer-{i}" for i in range(n))
