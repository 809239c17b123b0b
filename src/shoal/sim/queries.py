"""Free counts in a simulation: databases that answer what a study's ``[queries]`` allow, with the noise that they would add."""

from __future__ import annotations

from dataclasses import replace

from shoal.domain import Columns
from shoal.entropy import SeededEntropy
from shoal.errors import UsageError
from shoal.names import counted
from shoal.protocols.sdq.params import Table
from shoal.protocols.sdq.population import answer
from shoal.protocols.sdq.queries import Count, Counted, Free, Histogram, Marginals, Query, query_round, read
from shoal.sim.runs import numbers_of_names
from shoal.sim.sdq import databases_of, is_used
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
        ``SIM-002``: the study has no free counts that could be simulated.

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
        holders = None if holder is None else numbers_of_names(columns, holder)
        n_holders = 0 if holders is None else int(holders.max()) + 1
        whose = databases_of(self.params, len(labels), holders, n_holders, self._entropy.spawn("databases"))
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
        return self._ask(Count.of(self.params.schema, where))[0]

    def histogram(self, *features: str) -> Counted:
        """The joint table of some features."""
        return self._ask(Histogram(features=features))[0]

    def marginals(self, *features: str) -> tuple[Counted, ...]:
        """The table of each feature by itself."""
        return self._ask(Marginals(features=features))

    def _ask(self, query: Query) -> tuple[Counted, ...]:
        asked = query_round(self.params, self.free, query, self.n_asked)
        sums = answer(self.params, asked, self._table, self.params.n_databases, self._entropy.spawn("query", self.n_asked))
        self.n_asked += 1
        return read(self.params, self.free, query, sums)
