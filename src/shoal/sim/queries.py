"""Free counts in a simulation: databases that answer what a study's ``[queries]`` allow, with the noise that they would add."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from shoal.domain import Columns
from shoal.entropy import SeededEntropy
from shoal.errors import RemoteProtocolError, SpecError, UsageError
from shoal.names import counted, shown
from shoal.protocols.sdq.params import Table
from shoal.protocols.sdq.population import answer
from shoal.protocols.sdq.queries import Count, Counted, Free, Histogram, Marginals, Query, query_round, read, some
from shoal.sim.holders import holders_of, is_used
from shoal.sim.runs import numbers_of_names
from shoal.sim.sdq import members_of
from shoal.study.label import Statement
from shoal.study.plan import make_plan
from shoal.study.sdq import params_of
from shoal.study.spec import Study


class Databases:
    """The databases of an SDQ study, simulated on one table: they count, and refuse when all counts have been asked for.

    Nothing is protected by a simulation: it reads the rows themselves.

    Parameters
    ----------
    study
        A study of SDQ with a ``[queries]`` table.
    columns
        The rows of all databases.
    holder
        Name of a column that tells which database holds a row; None deals the rows at random.
    seed
        Whose each row is, and all noise, follow from it.

    Raises
    ------
    UsageError
        ``SIM-002``: the study has no free counts that could be simulated. ``SDQ-002``: it does not allow what is asked.

    Notes
    -----
    Ref: SDQ §IV, Algorithm 2.

    Examples
    --------
    >>> import numpy as np
    >>> from shoal.domain import as_columns
    >>> from shoal.study.load import parse
    >>> from shoal.study.templates import study_text
    >>> study = parse(study_text("sdq") + '[queries]\\nfeatures = ["ward"]\\nn_queries = 2\\nepsilon_release = 1.0\\n')
    >>> others = {"patient": np.arange(900), "age": np.full(900, 50), "nights": np.full(900, 3), "lives_alone": ["no"] * 900}
    >>> rows = as_columns({**others, "ward": ["surgery", "medicine", "emergency"] * 300, "readmitted": ["no", "yes"] * 450})
    >>> int(abs(Databases(study, rows).count(ward="surgery").counts - 300)) < 30
    True
    """

    simulated = True

    def __init__(self, study: Study, columns: Columns, holder: str | None = None, seed: int = 0) -> None:
        _check_arguments(study, columns, holder, seed)
        if study.protocol != "sdq" or study.queries is None:
            lack = "its protocol is another one" if study.protocol != "sdq" else "it has no [queries]"
            raise UsageError("SIM-002", f"Only an sdq study with [queries] has free counts; {lack}.", fix="Add [queries] to the study.")
        self.study = study
        self.params = params_of(study)
        self.free = Free(study.queries.features, study.queries.n_queries, study.queries.epsilon_release)
        self.n_asked = 0
        self._entropy = SeededEntropy(seed).spawn("queries", repr(self.params))
        schema = study.schema()
        encoded, labels = schema.encode(columns), schema.encode_label(columns)
        if not len(labels):
            raise SpecError("SIM-003", "The table has no rows.", why="There is nothing to count.", fix="Give at least one row.")
        holders = None if holder is None else numbers_of_names(columns, holder)
        n_holders = 0 if holders is None else int(holders.max()) + 1
        whose = holders_of(members_of(self.params), len(labels), holders, n_holders, self._entropy.spawn("databases"))
        people = None if study.data is None else numbers_of_names(columns, study.data.person)
        used = is_used(whose, people, study.max_rows)
        self._table = Table.of(self.params, {name: column[used] for name, column in encoded.items()}, labels[used], whose[used])

    def __repr__(self) -> str:
        asked = f"{self.n_asked} of {counted(self.free.n_queries, 'count')} asked"
        return f"<a simulation of {counted(self.params.n_databases, 'database')}: {asked}, nothing is protected>"

    @property
    def privacy(self) -> Statement:
        """What the study's label says, as that of a simulation."""
        return replace(make_plan(self.study).statement(), simulated=True)

    def count(self, /, **where: str | list[str]) -> Counted:
        """How many rows there are whose features are in given cells, by the names of the cells: ``count(ward="surgery")``."""
        self._check_features("count", tuple(where))
        return self._ask(Count.of(self.params.schema, where))[0]

    def histogram(self, *features: str) -> Counted:
        """The joint table of some features."""
        self._check_features("histogram", features)
        return self._ask(Histogram(features=features))[0]

    def marginals(self, *features: str) -> tuple[Counted, ...]:
        """The table of each feature by itself."""
        self._check_features("marginals", features)
        return self._ask(Marginals(features=features))

    def _check_features(self, call: str, features: tuple[object, ...]) -> None:
        strange = [feature for feature in features if not isinstance(feature, str) or feature not in self.free.features]
        if strange and not isinstance(strange[0], str):
            what = f"A feature is given as a {type(strange[0]).__name__}, not by its name."
            raise UsageError("SDQ-002", what, fix=f'{call}("{shown(self.free.features[0])}"), names with commas between.')
        if strange:
            raise UsageError("SDQ-002", f"The study's [queries] do not name {shown(str(strange[0])[:60])}.", fix=self._allowed)

    @property
    def _allowed(self) -> str:
        return (
            f"[queries] allow {counted(self.free.n_queries, 'count')} in all, by: {some(self.free.features)}; each of them once in a count."
        )

    def _ask(self, query: Query) -> tuple[Counted, ...]:
        try:
            asked = query_round(self.params, self.free, query, self.n_asked)
        except RemoteProtocolError as error:
            # To a database the miner is a stranger; here it is the caller.
            raise UsageError(error.code, error.what, why=error.why, fix=self._allowed) from None
        sums = answer(self.params, asked, self._table, self.params.n_databases, self._entropy.spawn("query", self.n_asked))
        self.n_asked += 1
        return read(self.params, self.free, query, sums)


def _check_arguments(study: object, columns: object, holder: object, seed: object) -> None:
    arguments = {
        'study: a Study, as load("study.toml") reads it': isinstance(study, Study),
        "columns: a mapping of names to columns, or a dataframe": isinstance(columns, Mapping) or hasattr(columns, "columns"),
        "holder: the name of a column, or None": holder is None or isinstance(holder, str),
        "seed: a whole number": isinstance(seed, int) and not isinstance(seed, bool),
    }
    for wanted, is_right in arguments.items():
        if not is_right:
            raise UsageError(
                "USAGE-001", f"Databases were given an argument of another kind: {wanted.partition(':')[0]}.", fix=f"Give {wanted}."
            )
