"""Variant `plus`: attributes chosen jointly or by noisy tables, then one joint table.

`SDQPlusScript` chooses one attribute for each level of a tree by a joint computation, then asks for
one joint table of the chosen attributes:

``choice/i``
    Which attribute is best next, by noisy scores that no party sees. It is not asked if only one
    attribute remains.
``table``
    Rows of each class in every joint cell of the chosen attributes, with the rest of the budget.

`SDQRankedScript` needs secure sums only. It is for studies with too many possible colluders for a
joint choice:

``tables``
    The table of every attribute with the label. The miner ranks the attributes by their mutual
    information with the label.
``table``
    Rows of each class in every joint cell of the best attributes.

If the noise is large, half of the budget gives a bad ranking and the other half a useless table.
Then `SDQRankedScript` spends the whole budget on ``tables`` and learns a tree from their naive
Bayes.

The numbers of cells and choices follow from the declared size and the noise, never from the data.
The price of a question is the same in every script state, so no miner can ask for more than the
budget.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import cached_property

import numpy as np

from shoal.privacy.events import Event
from shoal.privacy.rounding import compute_share
from shoal.protocols.sdq.counting import compute_local_scores, count_table
from shoal.protocols.sdq.level_tree import build_level_tree, build_naive_tree
from shoal.protocols.sdq.model import DecisionTree
from shoal.protocols.sdq.naive_bayes import (
    TABLES,
    Floats,
    clamp_deviation,
    estimate_class_shares,
    estimate_marginal_likelihoods,
    make_tables_round,
    price_tables,
    read_tables,
)
from shoal.protocols.sdq.noise import compute_deviation, price_choice, price_sum
from shoal.protocols.sdq.paper import MAX_COUNTS
from shoal.protocols.sdq.params import SDQParams
from shoal.protocols.sdq.script import (
    Answers,
    RoundPart,
    SDQRound,
    SDQScript,
    SDQScriptState,
    impossible_state_error,
)

_CHOICE_BUDGET_SHARE = Fraction(35, 100)
"""Share of the budget for all choices together."""
_MIN_ROWS_PER_CELL = 3.4
"""Smallest average number of rows of a joint cell, all classes.

The unit is the standard deviation of the noise on one count.
"""
_LEVEL_MARGIN = 0.4
"""Subtracted from the number of levels that would fill the cells.

Fewer choices are more reliable.
"""


def compute_max_cells(params: SDQParams, epsilon: float) -> int:
    """Return the most joint cells of a table at this price.

    A cell should have some rows for each standard deviation of its noise.

    Notes
    -----
    The result is at least the smallest attribute's number of cells, so that something can be
    learned, and at most the counts of a round.
    """
    worthwhile = int(
        params.size / (_MIN_ROWS_PER_CELL * clamp_deviation(compute_deviation(params, epsilon)))
    )
    return min(
        max(worthwhile, min(_list_useful_arities(params), default=1)),
        MAX_COUNTS // params.n_classes,
    )


def list_candidates(params: SDQParams, path: Sequence[int], n_cells: int) -> tuple[int, ...]:
    """List the attributes that fit next into a table of ``n_cells`` cells.

    Attributes with a single cell are left out.
    """
    if len(path) >= params.depth:
        return ()
    room = n_cells // math.prod(params.arities[attribute] for attribute in path)
    return tuple(j for j, arity in enumerate(params.arities) if 1 < arity <= room and j not in path)


def _list_useful_arities(params: SDQParams) -> list[int]:
    """List the numbers of cells of the attributes with more than one cell, in increasing order."""
    return sorted(arity for arity in params.arities if arity > 1)


class SDQPlusScript(SDQScript):
    """Variant ``plus``, with splits chosen jointly.

    Notes
    -----
    The score of a choice is the number of rows that the local majority of their cell predicts,
    summed over databases. One more row raises each score by 0 or 1, so one-sided noise without a
    factor 2 suffices (`DistributedNoisyMax`). Candidates with too many cells are left out. The tree
    splits on the same attribute everywhere in a level, and all its counts are sums of the one
    table.

    The three constants were chosen together with those of `shoal.protocols.sdq.naive_bayes`, on
    development rows only: three quarters of Nursery, Adult, Bank Marketing, Phishing Websites and a
    MOOC's drop-outs, and four random decision lists.

    Ref: SDQ Algorithm 3, from which it departs; Friedman and Schuster 2010 for the score; errata
    S-09.

    Privacy
    -------
    The scope of the parameters. Each choice costs an equal part of 0.35 B, and the table costs what
    the largest possible number of choices leaves: B in all. All questions together cost B, so the
    order in which they are asked, and the states in which they are asked, do not matter.

    Examples
    --------
    >>> from shoal.data.schema import Categorical, Schema
    >>> schema = Schema(
    ...     [Categorical(name, ["a", "b"]) for name in "xyz"],
    ...     label=Categorical("ill", ["no", "yes"]),
    ... )
    >>> script = SDQPlusScript(SDQParams(schema, epsilon=0.1, size=10_000))
    >>> (
    ...     script.make_round(SDQScriptState()).question,
    ...     script.costliest_questions,
    ...     script.prices["table"].epsilon,
    ... )
    ('choice/0', (('choice/0', 2), ('table', 1)), 0.076666666666)
    """

    def __init__(self, params: SDQParams) -> None:
        super().__init__(params)
        self.n_cells = compute_max_cells(params, self._share_epsilon(1 - _CHOICE_BUDGET_SHARE))
        self.n_levels = self._compute_max_levels()
        self.n_choices = self._count_max_choices()

    def _share_epsilon(self, part: Fraction) -> float:
        return math.inf if self.params.is_noiseless else compute_share(self.params.epsilon, part)

    def _compute_max_levels(self) -> int:
        """Return the number of levels with which attributes of median size would fill the cells.

        Cells that a narrower attribute does not use stay empty.
        """
        arities = _list_useful_arities(self.params)
        usual = arities[: max(3, len(arities) * 2 // 3)]
        if not usual:
            return 1
        level = math.fsum(map(math.log, usual)) / len(usual)
        return max(
            1,
            min(
                self.params.depth,
                len(arities),
                int(math.log(self.n_cells) / level - _LEVEL_MARGIN),
            ),
        )

    def _count_max_choices(self) -> int:
        """Return the number of choices if the smallest attribute is chosen each time.

        Notes
        -----
        No sequence of choices is longer. If another sequence of i attributes leaves room for two
        more, x <= y, this one does too: of those i + 2, two are not among the i smallest; x and y
        have room here, since the i smallest have the least product; and s, taken in place of a
        smaller y that is among them, has room because i - 1 others than y and s have at least the
        product of the i smallest without y.
        """
        chosen: tuple[int, ...] = ()
        while left := self._follow(chosen)[1]:
            chosen = (*chosen, min(left, key=lambda attribute: self.params.arities[attribute]))
        return len(chosen)

    @property
    def _choice_epsilon(self) -> float:
        return self._share_epsilon(_CHOICE_BUDGET_SHARE / self.n_levels)

    @property
    def _table_epsilon(self) -> float:
        return self._share_epsilon(1 - self.n_choices * _CHOICE_BUDGET_SHARE / self.n_levels)

    @cached_property
    def prices(self) -> Mapping[str, Event]:
        prices = {
            f"choice/{i}": price_choice(self.params, self._choice_epsilon)
            for i in range(self.n_choices)
        }
        prices["table"] = price_sum(self.params, self._table_epsilon)
        return {
            question: event.with_reads(*self.params.columns) for question, event in prices.items()
        }

    @property
    def costliest_questions(self) -> tuple[tuple[str, int], ...]:
        choices = (("choice/0", self.n_choices),) if self.n_choices else ()
        return (*choices, ("table", 1))

    def _follow(self, chosen: Sequence[int]) -> tuple[list[int], tuple[int, ...]]:
        """Return the attributes of all levels after these choices, and the next candidates.

        The attributes include those that were the only candidate.
        """
        path: list[int] = []
        n_followed = 0
        while len(path) < self.n_levels and (
            left := list_candidates(self.params, path, self.n_cells)
        ):
            if len(left) == 1:
                path.append(left[0])
                continue
            if n_followed == len(chosen):
                return path, left
            if chosen[n_followed] not in left:
                raise impossible_state_error("the chosen attribute was not a candidate")
            path.append(chosen[n_followed])
            n_followed += 1
        if n_followed < len(chosen):
            raise impossible_state_error("it has more choices than the study")
        return path, ()

    def _locate(self, state: SDQScriptState) -> tuple[list[int], tuple[int, ...], bool]:
        """Do the same as `_follow`, and return whether the table has been asked for too."""
        path, left = self._follow(state.choices)
        is_done = state.step == len(state.choices) + 1
        if (
            state.leaves
            or state.step not in (len(state.choices), len(state.choices) + 1)
            or (is_done and left)
        ):
            raise impossible_state_error("its choices do not fit its step")
        return path, left, is_done

    def make_round(self, state: SDQScriptState) -> SDQRound | None:
        path, left, is_done = self._locate(state)
        arities, n_classes = self.params.arities, self.params.n_classes
        if is_done:
            return None
        if left:
            part = RoundPart(
                lambda table: compute_local_scores(table, path, left, arities, n_classes),
                len(left),
                self._choice_epsilon,
            )
            return SDQRound(f"choice/{len(state.choices)}", (part,), is_choice=True)
        size = math.prod(arities[attribute] for attribute in path) * n_classes
        part = RoundPart(
            lambda table: count_table(table, path, arities, n_classes), size, self._table_epsilon
        )
        return SDQRound("table", (part,))

    def advance(self, state: SDQScriptState, answers: Answers) -> SDQScriptState:
        _, left, _ = self._locate(state)
        chosen = (left[int(answers[-1].item())],) if left else ()
        return state.replace(step=state.step + 1, choices=(*state.choices, *chosen))

    def build_model(self, state: SDQScriptState, answers: Answers) -> DecisionTree:
        path, _, _ = self._locate(state)
        joint = answers[-1].reshape(-1, self.params.n_classes).astype(np.float64)
        deviation = compute_deviation(self.params, self._table_epsilon)
        shares = estimate_class_shares(joint.sum(axis=0), deviation * math.sqrt(len(joint)))
        likelihoods = estimate_marginal_likelihoods(
            joint, [self.params.arities[attribute] for attribute in path], deviation
        )
        return build_level_tree(self.params.schema, path, joint, deviation, shares, likelihoods)


_TABLES_BUDGET_SHARE = Fraction(1, 2)
"""Share of the budget for the tables of single attributes, if there is a joint table too."""
_MIN_ROWS_PER_COUNT = 20.0
"""Average rows of a count of a table, in standard deviations of its noise, above which a joint
table is worth its cost.
"""
_MAX_LEAVES = 1 << 14
"""Leaves of a tree of naive Bayes alone; its cells cost no budget."""


def compute_information(shares: Floats, likelihoods: Floats) -> float:
    """Return the mutual information of an attribute and the class, in nats.

    It is computed from the shares of the classes, ``(L,)``, and P(cell | class), ``(cells, L)``.
    """
    joint = likelihoods * shares
    return float((joint * np.log(likelihoods / joint.sum(axis=1, keepdims=True))).sum())


class SDQRankedScript(SDQScript):
    """Variant ``plus``, with splits chosen from sums.

    Notes
    -----
    The attributes are used in order of their mutual information with the label, while their joint
    table has few enough cells. Cells with few rows fall back to the naive Bayes of the tables. The
    constants were chosen like those of `shoal.protocols.sdq.naive_bayes`.

    Privacy
    -------
    The scope of the parameters; B for the tables, or B / 2 for them and B / 2 for the joint table.

    Examples
    --------
    >>> from shoal.data.schema import Categorical, Schema
    >>> schema = Schema(
    ...     [Categorical(name, ["a", "b"]) for name in "xyz"],
    ...     label=Categorical("ill", ["no", "yes"]),
    ... )
    >>> [
    ...     SDQRankedScript(
    ...         SDQParams(schema, epsilon, size=1000, choice="sums")
    ...     ).costliest_questions
    ...     for epsilon in (0.1, 1.0)
    ... ]
    [(('tables', 1),), (('tables', 1), ('table', 1))]
    """

    def __init__(self, params: SDQParams) -> None:
        super().__init__(params)
        n_tables = len(params.arities)
        rows = params.size * n_tables / (sum(params.arities) * params.n_classes)
        self.has_table = rows >= _MIN_ROWS_PER_COUNT * clamp_deviation(
            compute_deviation(params, self._share_epsilon(Fraction(1)), n_tables)
        )
        self.epsilon_tables = self._share_epsilon(
            _TABLES_BUDGET_SHARE if self.has_table else Fraction(1)
        )
        self.epsilon_table = self._share_epsilon(1 - _TABLES_BUDGET_SHARE)
        self.n_cells = (
            compute_max_cells(params, self.epsilon_table) if self.has_table else _MAX_LEAVES
        )

    def _share_epsilon(self, part: Fraction) -> float:
        return math.inf if self.params.is_noiseless else compute_share(self.params.epsilon, part)

    @cached_property
    def prices(self) -> Mapping[str, Event]:
        prices = {TABLES: price_tables(self.params, self.epsilon_tables)}
        if self.has_table:
            prices["table"] = price_sum(self.params, self.epsilon_table).with_reads(
                *self.params.columns
            )
        return prices

    @property
    def costliest_questions(self) -> tuple[tuple[str, int], ...]:
        return tuple((question, 1) for question in self.prices)

    def make_round(self, state: SDQScriptState) -> SDQRound | None:
        self._check_state(state)
        if state.step == 0:
            return make_tables_round(self.params, self.epsilon_tables)
        if state.step == 1 and self.has_table:
            arities, n_classes, path = self.params.arities, self.params.n_classes, state.choices
            size = math.prod(arities[attribute] for attribute in path) * n_classes
            return SDQRound(
                "table",
                (
                    RoundPart(
                        lambda table: count_table(table, path, arities, n_classes),
                        size,
                        self.epsilon_table,
                    ),
                ),
            )
        return None

    def _check_state(self, state: SDQScriptState) -> None:
        if state.leaves or not 0 <= state.step <= 1 + self.has_table:
            raise impossible_state_error("it has more steps than the study")
        for level, attribute in enumerate(state.choices):
            if attribute not in list_candidates(self.params, state.choices[:level], self.n_cells):
                raise impossible_state_error("a chosen attribute does not fit")
        # With any ranking, attributes are added until no other fits.
        if (
            state.choices
            if state.step == 0
            else list_candidates(self.params, state.choices, self.n_cells)
        ):
            raise impossible_state_error("its choices do not fit its step")

    def advance(self, state: SDQScriptState, answers: Answers) -> SDQScriptState:
        choices = state.choices if state.step else self._rank_attributes(answers)
        return state.replace(step=state.step + 1, choices=choices)

    def _rank_attributes(self, answers: Answers) -> tuple[int, ...]:
        shares, likelihoods = read_tables(self.params, answers[0], self.epsilon_tables)
        information = [compute_information(shares, table) for table in likelihoods]
        path: tuple[int, ...] = ()
        while left := list_candidates(self.params, path, self.n_cells):
            path = (*path, max(left, key=information.__getitem__))
        return path

    def build_model(self, state: SDQScriptState, answers: Answers) -> DecisionTree:
        shares, likelihoods = read_tables(self.params, answers[0], self.epsilon_tables)
        chosen = [likelihoods[attribute] for attribute in state.choices]
        if not self.has_table:
            return build_naive_tree(self.params.schema, state.choices, shares, chosen)
        joint = answers[1].reshape(-1, self.params.n_classes).astype(np.float64)
        return build_level_tree(
            self.params.schema,
            state.choices,
            joint,
            compute_deviation(self.params, self.epsilon_table),
            shares,
            chosen,
        )
