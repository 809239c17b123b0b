"""The real machines of an SDQ or PFDS study with known keys, for tests and measurements.

Tests run them with `run_local` or `shoal.simulation.network`; a comparison counts what they send.
Never use them for a real study: anyone who knows the seed can sign as every member.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any

from shoal.crypto.identity import Identity, Roster
from shoal.entropy import SeededEntropy
from shoal.protocols.base import AGGREGATOR, JointComputation, run_local
from shoal.protocols.machines import Aggregator, Peer
from shoal.protocols.pfds.aggregator import LocalAggregator, SecureSumAggregator, check_n_holders
from shoal.protocols.pfds.paper.aggregator import PaperAggregator
from shoal.protocols.pfds.paper.peer import PaperPeer, PaperReadOnlyPeer
from shoal.protocols.pfds.paper.script import TreeRows
from shoal.protocols.pfds.params import PFDSParams, PFDSRows
from shoal.protocols.pfds.peer import LocalPeer, ReadOnlyPeer, SecureSumPeer
from shoal.protocols.pfds.script import SecureSumScript
from shoal.protocols.sdq.aggregator import SDQAggregator
from shoal.protocols.sdq.params import CellTable
from shoal.protocols.sdq.peer import SDQPeer
from shoal.protocols.sdq.queries import QueryRules, SDQQuery
from shoal.protocols.sdq.script import SDQScript
from shoal.protocols.secagg.member import SumMember
from shoal.protocols.secagg.messages import SumParameters
from shoal.simulation.protocol import MessageVolume

MINUTE = timedelta(minutes=1)
MAX_MEMBERS = {"secure-sum": 25, "local": 100}
"""Trust level -> most members to measure.

The machines of more members take longer than the rest of a comparison. In a secure sum each member
shares a key with every other.
"""


def make_sdq_machines(
    script: SDQScript,
    tables: Sequence[CellTable],
    seed: int | str = 0,
    *,
    free: QueryRules | None = None,
    queries: tuple[SDQQuery, ...] = (),
    peer: type[SDQPeer] = SDQPeer,
    aggregator: type[SDQAggregator] = SDQAggregator,
) -> tuple[SDQAggregator, dict[str, SDQPeer]]:
    """Return the miner, and a database for each table: ``peer-0``, ``peer-1`` and so on.

    Parameters
    ----------
    tables
        The rows of each database.
    seed
        Determines the identities and the study's digest.
    free, queries
        Arguments of the aggregator.
    peer, aggregator
        The classes of the machines.

    Examples
    --------
    >>> import numpy as np
    >>> from shoal.data.schema import Categorical, Schema
    >>> from shoal.protocols.base import run_local
    >>> from shoal.protocols.sdq.paper import SDQPaperScript, SDQParams
    >>> schema = Schema(
    ...     [Categorical("wind", ["weak", "strong"])], label=Categorical("play", ["no", "yes"])
    ... )
    >>> tables = [CellTable(np.zeros((9, 1), np.int64), np.ones(9, np.int64))] * 3
    >>> script = SDQPaperScript(
    ...     SDQParams(schema, 1.0, 27, n_databases=3, minimum=3, variant="paper")
    ... )
    >>> run_local(*make_sdq_machines(script, tables), SeededEntropy(1)).results["peer-0"]
    2
    """
    params, entropy = script.params, SeededEntropy(seed).spawn("sdq machines")
    names = tuple(f"peer-{i}" for i in range(len(tables)))
    identities = [Identity.from_seed(entropy.spawn(name).bytes(32)) for name in names]
    roster = Roster(names, tuple(identity.public_key for identity in identities))
    threshold = len(names) if params.trust == "local" else params.minimum
    terms = SumParameters(entropy.spawn("study").bytes(32), roster, threshold)
    peers = {
        name: peer(script, SumMember(terms, i, identity), table, free)
        for i, (name, identity, table) in enumerate(zip(names, identities, tables, strict=True))
    }
    return aggregator(script, terms, MINUTE, free, queries), peers


def make_pfds_machines(
    params: PFDSParams,
    rows: Sequence[PFDSRows],
    seed: int | str = 0,
    *,
    readers: Sequence[PFDSRows | None] = (),
    phase_timeout: timedelta = MINUTE,
    peer: type[Any] | None = None,
    aggregator: type[Any] | None = None,
) -> tuple[Aggregator[Any], dict[str, Peer[Any]]]:
    """Return the aggregator of variant plus, and the peers that share or only read.

    Sharing peers are called ``peer-0``, ``peer-1`` and so on; readers ``reader-0`` and so on.

    Parameters
    ----------
    rows
        The rows of each holder that shares.
    seed
        Determines the identities and the study's digest.
    readers
        The rows of each holder that only reads; None for a reader without rows.
    phase_timeout
        Longest wait of the aggregator for each step.
    peer, aggregator
        Classes that replace those of the study's trust.

    Raises
    ------
    SpecError
        ``PFDS-005``: there are rows of more or fewer holders than the study has.

    Examples
    --------
    >>> import numpy as np
    >>> from shoal.data.schema import Categorical, Schema
    >>> from shoal.protocols.base import run_local
    >>> schema = Schema(
    ...     [Categorical("wind", ["weak", "strong"], missing=False)],
    ...     label=Categorical("play", ["no", "yes"]),
    ... )
    >>> params = PFDSParams(schema, 1.0, 60, n_holders=3, minimum=3)
    >>> rows = PFDSRows.from_columns(params, {"wind": np.arange(20) % 2}, np.arange(20) % 2)
    >>> run_local(*make_pfds_machines(params, [rows] * 3), SeededEntropy(1)).results["peer-0"]
    PersonalModel(fitted to the holder's rows: never leaves)
    """
    assert params.variant == "plus"
    entropy, names = SeededEntropy(seed).spawn("pfds machines"), _make_peer_names(params, len(rows))
    study = entropy.spawn("study").bytes(32)
    reading = {f"reader-{i}": ReadOnlyPeer(params, study, own) for i, own in enumerate(readers)}
    if params.trust == "local":
        sharing = {
            name: (peer or LocalPeer)(params, study, i, rows[i]) for i, name in enumerate(names)
        }
        return (aggregator or LocalAggregator)(params, study, names, phase_timeout), {
            **sharing,
            **reading,
        }
    identities = [Identity.from_seed(entropy.spawn(name).bytes(32)) for name in names]
    terms = SumParameters(
        study, Roster(names, tuple(identity.public_key for identity in identities)), params.minimum
    )
    script = SecureSumScript(params)
    sharing = {
        name: (peer or SecureSumPeer)(script, SumMember(terms, i, identities[i]), rows[i])
        for i, name in enumerate(names)
    }
    return (aggregator or SecureSumAggregator)(script, terms, phase_timeout), {**sharing, **reading}


def make_pfds_paper_machines(
    params: PFDSParams,
    points: Sequence[TreeRows],
    seed: int | str = 0,
    *,
    n_readers: int = 0,
    phase_timeout: timedelta = MINUTE,
    peer: type[PaperPeer] = PaperPeer,
    aggregator: type[PaperAggregator] = PaperAggregator,
) -> tuple[PaperAggregator, dict[str, Peer[Any]]]:
    """Return the aggregator and the peers of variant paper.

    ``points`` are the rows of each holder that shares; names are as in `make_pfds_machines`.

    Examples
    --------
    >>> import numpy as np
    >>> from shoal.data.schema import Categorical, Numeric, Schema
    >>> from shoal.protocols.base import run_local
    >>> schema = Schema(
    ...     [Numeric("age", 0, 9), Numeric("size", 0, 9)], label=Categorical("ill", ["no", "yes"])
    ... )
    >>> params = PFDSParams(schema, 1.0, 60, n_holders=3, minimum=3, variant="paper")
    >>> points = TreeRows(np.arange(40.0).reshape(20, 2) % 9, np.arange(20) % 2)
    >>> list(
    ...     run_local(*make_pfds_paper_machines(params, [points] * 3), SeededEntropy(1))
    ...     .results["peer-0"]
    ...     .datasets
    ... )
    ['peer-0', 'peer-1', 'peer-2']
    """
    names = _make_peer_names(params, len(points))
    study = SeededEntropy(seed).spawn("pfds machines").spawn("study").bytes(32)
    sharing = {
        name: peer(params, study, name, own) for name, own in zip(names, points, strict=True)
    }
    reading = {f"reader-{i}": PaperReadOnlyPeer(params, study) for i in range(n_readers)}
    return aggregator(params, study, names, phase_timeout), {**sharing, **reading}


def _make_peer_names(params: PFDSParams, n: int) -> tuple[str, ...]:
    # Check before a peer is made: a surplus holder has no attributes to count.
    check_n_holders(params, n)
    return tuple(f"peer-{i}" for i in range(n))


def run_and_measure(
    machines: tuple[Aggregator[Any], Mapping[str, Peer[Any]]],
    entropy: SeededEntropy,
    computing: AbstractContextManager[JointComputation | None],
) -> MessageVolume | None:
    """Run machines to their end, and return what one peer sends; None if they do not finish.

    Sizes are those of encoded messages. HTTP, tokens and sealed packets add bytes that depend on
    the network path.
    """
    with computing as computer:
        outcome = run_local(*machines, entropy, computer=computer)
    if outcome.aborted or outcome.failed:
        return None
    sizes = [len(sent.payload) for sent in outcome.sent if sent.sender != AGGREGATOR]
    n = len(machines[1])
    return MessageVolume(sum(sizes) / n, len(sizes) / n)
