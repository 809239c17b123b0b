"""Audit of AnonML: rows that differ the most, valid phases, and packets from the ledger."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.audit.anonml import (
    ROWS,
    AnonMLAuditHarness,
    find_ends,
    make_corner_rows,
    open_phases,
    supports,
)
from shoal.data.schema import Categorical, Numeric
from shoal.mechanisms.calibrate import make_mechanism
from shoal.privacy.rounding import grains_up
from shoal.protocols.anonml.assignment import draw_words
from shoal.protocols.anonml.peer import AnonMLPeer
from shoal.protocols.anonml.questions import (
    AgreementQuestion,
    AssignedRows,
    BlockQuestion,
    LabelQuestion,
)
from shoal.protocols.anonml.variants import make_script
from shoal.protocols.base import MemoryLedger, Send
from shoal.study.anonml import build_params
from tests.unit.audit.small_studies import STUDIES, make_study

DIGEST = bytes(range(32))
NAMES = list(STUDIES)


def build_named_script(name):
    return make_script(build_params(STUDIES[name]), DIGEST)


def test_find_ends_returns_values_in_different_cells():
    assert find_ends(Numeric("age", 17, 90)) == (17.0, 90.0)
    assert find_ends(Categorical("town", ["a", "b", "c"])) == (0, 2)
    # The last value is of the first one's group.
    assert find_ends(
        Categorical("town", ["a", "b", "c"], groups={"far": ["a", "c"], "near": ["b"]})
    ) == (0, 1)


@pytest.mark.parametrize("name", NAMES)
def test_corner_rows_differ_in_features_in_the_label_and_in_both(name):
    script = build_named_script(name)
    columns, labels = make_corner_rows(script)
    assert labels.tolist() == [0, 0, script.params.n_labels - 1]
    for feature in script.params.schema.features:
        low, high, same = columns[feature.name].tolist()
        assert low != high == same


@pytest.mark.parametrize("name", NAMES)
def test_open_phases_returns_phases_that_a_peer_accepts(name):
    script = build_named_script(name)
    phases = open_phases(DIGEST, script)
    assert [ask.phase for ask, _ in phases] == list(range(script.n_phases))
    for ask, questions in phases:
        script.check_publication(ask.phase, ask.publication)
        assert questions == script.questions(ask.phase, ask.publication)


@pytest.mark.parametrize("name", NAMES)
def test_each_question_separates_some_pair_of_rows(name, entropy):
    """Pairs that differ in features are separated by each question about features.

    The other pair is separated by each question about the label.
    """
    script = build_named_script(name)
    columns, labels = make_corner_rows(script)
    for _, questions in open_phases(DIGEST, script):
        for question in questions:
            rows = AssignedRows(
                columns, labels, np.repeat(draw_words(1, entropy), len(ROWS), axis=0)
            )
            first, second, third = question.find_cells(rows).tolist()
            assert first != second or isinstance(question, LabelQuestion)
            assert first != third or isinstance(question, AgreementQuestion)
            if isinstance(question, LabelQuestion | AgreementQuestion | BlockQuestion):
                assert second != third


@pytest.mark.parametrize("kind", ["random-response", "rappor", "pq", "subset-selection"])
def test_supports_agrees_with_the_mechanism(kind, entropy):
    counted = make_mechanism(kind, 1.0, 19)
    for value in range(19):
        report = counted.decode(counted.encode(counted.report(value, entropy)))
        assert [supports(report, cell) for cell in range(19)] == counted.tally(
            counted.stack([report])
        ).tolist()


@pytest.mark.parametrize("name", NAMES)
def test_peer_answers_the_questions_of_its_ticket_at_the_scripts_prices(name, entropy):
    script = build_named_script(name)
    stage = AnonMLAuditHarness(DIGEST, script)
    for row in range(len(ROWS)):
        outputs = stage.draw(row, 8, entropy)
        assert outputs.support.shape == (8, len(ROWS))
        assert outputs.charge == sum(grains_up(event.epsilon) for event in script.prices.values())
        for place in outputs.answered_questions:
            assert len(place) == len(set(place)) == len(script.prices)
            assert sorted(script.question_name(*slot) for slot in place) == sorted(script.prices)


@pytest.mark.parametrize("row", range(len(ROWS)))
def test_large_epsilon_makes_each_packet_support_the_peers_row(row, entropy):
    stage = AnonMLAuditHarness(DIGEST, make_script(build_params(make_study(30.0)), DIGEST))
    outputs = stage.draw(row, 30, entropy)
    assert outputs.support[:, row].tolist() == [1] * 30
    # The other rows are of other cells but for a question that a pair has in common.
    assert np.delete(outputs.support, row, axis=1).sum() < 60


def test_outputs_are_charged_and_are_the_bytes_of_the_ledger(entropy):
    script = build_named_script("paper")
    stage, ledger = AnonMLAuditHarness(DIGEST, script), MemoryLedger()
    columns, labels = make_corner_rows(script)
    peer = AnonMLPeer(
        DIGEST,
        script,
        bytes(32),
        {name: column[:1] for name, column in columns.items()},
        labels[:1],
    )
    answers = stage.run_peer(peer, ledger, entropy)
    (total,) = ledger.totals()
    assert (total.held, total.spent) == (
        0,
        sum(grains_up(event.epsilon) for event in script.prices.values()),
    )
    assert len(answers) == total.releases == 3
    assert {answer.ticket for answer in answers} == {bytes(32)}


def test_harness_rejects_messages_that_are_not_answers(entropy):
    """A message without a price must not be ignored: the audit would miss it."""

    class Chatty(AnonMLPeer):
        def on_start(self, state, now, entropy):
            return state, (Send("aggregator", self.hello),)

    script = build_named_script("bits")
    stage = AnonMLAuditHarness(DIGEST, script, Chatty)
    Chatty.hello = stage.phases[0][0]
    with pytest.raises(AssertionError):
        stage.draw(0, 1, entropy)
