"""Free counts in a simulation: databases that answer the ``[queries]`` of an SDQ study.

The guide on simulations shows how an analyst tries counts with it. The noise is that of real
databases, and counts beyond ``n_queries`` are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from shoal.data.schema import Columns
from shoal.entropy import SeededEntropy
from shoal.errors import RemoteProtocolError, SpecError, UsageError
from shoal.protocols.sdq.params import CellTable
from shoal.protocols.sdq.population import draw_answer
from shoal.protocols.sdq.queries import (
    CountQuery,
    HistogramQuery,
    MarginalsQuery,
    NoisyTable,
    QueryRules,
    SDQQuery,
    format_names,
    make_query_round,
    read_query_tables,
)
from shoal.simulation.holders import assign_holders, select_used_rows
from shoal.simulation.run import make_seed_text, number_names
from shoal.simulation.sdq import make_members
from shoal.study.label import Statement
from shoal.study.plan import make_plan
from shoal.study.sdq import build_params
from shoal.study.spec import Study
from shoal.text import escape_text, format_count


class SimulatedDatabases:
    """The databases of an SDQ study, simulated on one table.

    They answer free counts, and refuse when all counts are used. A simulation protects nothing: it
    reads the rows themselves.

    Parameters
    ----------
    study
        A study of SDQ with a ``[queries]`` table.
    columns
        The rows of all databases.
    holder
        Name of a column with the database of each row; None assigns rows at random.
    seed
        Source of all randomness: the assignment of rows, and the noise.

    Raises
    ------
    UsageError
        ``SIM-002``: the study has no free counts. ``SDQ-002``: it does not allow this count.

    Notes
    -----
    Ref: SDQ §IV, Algorithm 2.

    Examples
    --------
    >>> import numpy as np
    >>> from shoal.data.schema import as_columns
    >>> from shoal.study.loader import parse_study_text
    >>> from shoal.study.sdq import SDQProtocol
    >>> from shoal.study.starters import read_starter
    >>> study = parse_study_text(
    ...     read_starter(SDQProtocol.name)
    ...     + '[queries]\\nfeatures = ["ward"]\\nn_queries = 2\\nepsilon_release = 1.0\\n'
    ... )
    >>> others = {
    ...     "patient": np.arange(900),
    ...     "age": np.full(900, 50),
    ...     "nights": np.full(900, 3),
    ...     "lives_alone": ["no"] * 900,
    ... }
    >>> rows = as_columns(
    ...     {
    ...         **others,
    ...         "ward": ["surgery", "medicine", "emergency"] * 300,
    ...         "readmitted": ["no", "yes"] * 450,
    ...     }
    ... )
    >>> int(abs(SimulatedDatabases(study, rows).count(ward="surgery").counts - 300)) < 30
    True
    """

    simulated = True

    def __init__(
        self, study: Study, columns: Columns, holder: str | None = None, seed: int = 0
    ) -> None:
        _check_arguments(study, columns, holder, seed)
        if study.sdq is None or study.queries is None:
            lack = "this study has another protocol" if study.sdq is None else "it has no [queries]"
            raise UsageError(
                "SIM-002",
                f"Only an sdq study with [queries] has free counts; {lack}.",
                fix="Add [queries] to a study of sdq.",
            )
        self.study = study
        self.params = build_params(study)
        self.free = QueryRules(
            study.queries.features, study.queries.n_queries, study.queries.epsilon_release
        )
        self.n_asked = 0
        self._entropy = SeededEntropy(seed).spawn("queries", make_seed_text(self.params))
        schema = study.schema()
        encoded, labels = schema.encode(columns), schema.encode_label(columns)
        if not len(labels):
            raise SpecError(
                "SIM-003",
                "The table has no rows.",
                why="There is nothing to count.",
                fix="Give at least one row.",
            )
        holders = None if holder is None else number_names(columns, holder)
        n_holders = 0 if holders is None else int(holders.max()) + 1
        database = assign_holders(
            make_members(self.params),
            len(labels),
            holders,
            n_holders,
            self._entropy.spawn("databases"),
        )
        people = None if study.data is None else number_names(columns, study.data.person)
        used = select_used_rows(database, people, study.max_rows)
        self._table = CellTable.from_columns(
            self.params,
            {name: column[used] for name, column in encoded.items()},
            labels[used],
            database[used],
        )

    def __repr__(self) -> str:
        used = f"{self.n_asked} of {format_count(self.free.n_queries, 'count')} used"
        return (
            f"<a simulation of {format_count(self.params.n_databases, 'database')}: {used}, "
            "nothing is protected>"
        )

    @property
    def privacy(self) -> Statement:
        """The study's label, marked as that of a simulation."""
        return replace(make_plan(self.study).make_statement(), simulated=True)

    def count(self, /, **where: str | list[str]) -> NoisyTable:
        """Return the number of rows with features in given cells: ``count(ward="surgery")``."""
        self._check_features("count", tuple(where))
        return self._ask(CountQuery.from_names(self.params.schema, where))[0]

    def histogram(self, *features: str) -> NoisyTable:
        """Return the joint table of some features."""
        self._check_features("histogram", features)
        return self._ask(HistogramQuery(features=features))[0]

    def marginals(self, *features: str) -> tuple[NoisyTable, ...]:
        """Return the table of each feature alone."""
        self._check_features("marginals", features)
        return self._ask(MarginalsQuery(features=features))

    def _check_features(self, call: str, features: tuple[object, ...]) -> None:
        unknown = [
            feature
            for feature in features
            if not isinstance(feature, str) or feature not in self.free.features
        ]
        if unknown and not isinstance(unknown[0], str):
            what = f"A feature is given as a {type(unknown[0]).__name__}, not by its name."
            example = f'{call}("{escape_text(self.free.features[0])}")'
            raise UsageError("SDQ-002", what, fix=f"Give names with commas between: {example}")
        if unknown:
            raise UsageError(
                "SDQ-002",
                f"The study's [queries] do not name {escape_text(str(unknown[0])[:60])}.",
                fix=self._allowed,
            )

    @property
    def _allowed(self) -> str:
        return (
            f"[queries] allow {format_count(self.free.n_queries, 'count')} in all, by: "
            f"{format_names(self.free.features)}; each of them once in a count."
        )

    def _ask(self, query: SDQQuery) -> tuple[NoisyTable, ...]:
        try:
            query_round = make_query_round(self.params, self.free, query, self.n_asked)
        except RemoteProtocolError as error:
            # For a database this is an error of the remote miner; here it is one of the caller.
            raise UsageError(error.code, error.what, why=error.why, fix=self._allowed) from None
        sums = draw_answer(
            self.params,
            query_round,
            self._table,
            self.params.n_databases,
            self._entropy.spawn("query", self.n_asked),
        )
        self.n_asked += 1
        return read_query_tables(self.params, self.free, query, sums)


def _check_arguments(study: object, columns: object, holder: object, seed: object) -> None:
    arguments = {
        'study: a Study, as load("study.toml") reads it': isinstance(study, Study),
        "columns: a mapping of names to columns, or a dataframe": isinstance(columns, Mapping)
        or hasattr(columns, "columns"),
        "holder: the name of a column, or None": holder is None or isinstance(holder, str),
        "seed: a whole number": isinstance(seed, int) and not isinstance(seed, bool),
    }
    for wanted, is_right in arguments.items():
        if not is_right:
            raise UsageError(
                "USAGE-001",
                f"An argument has the wrong type: {wanted.partition(':')[0]}.",
                fix=f"Give {wanted}.",
            )
