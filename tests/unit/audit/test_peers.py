"""A peer's whole output: rows that differ wherever they can, phases that every peer accepts, packets that left through the ledger."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.audit.peers import ROWS, Stage, corner_rows, ends, open_phases, supports
from shoal.domain import Categorical, Numeric
from shoal.mechanisms.calibrate import mechanism
from shoal.privacy.rounding import grains_up
from shoal.protocols.anonml.assignment import draw_words
from shoal.protocols.anonml.peer import AnonMLPeer
from shoal.protocols.anonml.population import make_script
from shoal.protocols.anonml.questions import Agree, Block, LabelIs, Rows
from shoal.protocols.base import MemoryLedger, Send
from shoal.study.anonml import params_of
from unit.audit.small_studies import STUDIES, make_study

DIGEST = bytes(range(32))
NAMES = list(STUDIES)


def script_of(name):
    return make_script(params_of(STUDIES[name]), DIGEST)


def test_ends_fall_into_different_cells():
    assert ends(Numeric("age", 17, 90)) == (17.0, 90.0)
    assert ends(Categorical("town", ["a", "b", "c"])) == (0, 2)
    # The last value is of the first one's group.
    assert ends(Categorical("town", ["a", "b", "c"], groups={"far": ["a", "c"], "near": ["b"]})) == (0, 1)


@pytest.mark.parametrize("name", NAMES)
def test_rows_differ_in_features_in_the_label_and_in_both(name):
    script = script_of(name)
    columns, labels = corner_rows(script)
    assert labels.tolist() == [0, 0, script.params.n_labels - 1]
    for feature in script.params.schema.features:
        low, high, same = columns[feature.name].tolist()
        assert low != high == same


@pytest.mark.parametrize("name", NAMES)
def test_every_phase_is_one_that_a_peer_accepts(name):
    script = script_of(name)
    phases = open_phases(DIGEST, script)
    assert [ask.phase for ask, _ in phases] == list(range(script.n_phases))
    for ask, questions in phases:
        script.check(ask.phase, ask.publication)
        assert questions == script.questions(ask.phase, ask.publication)


@pytest.mark.parametrize("name", NAMES)
def test_every_question_tells_some_pair_of_rows_apart(name, entropy):
    """Each pair but that of the label alone differs in every question about features, and that one in every question about the label."""
    script = script_of(name)
    columns, labels = corner_rows(script)
    for _, questions in open_phases(DIGEST, script):
        for question in questions:
            rows = Rows(columns, labels, np.repeat(draw_words(1, entropy), len(ROWS), axis=0))
            first, second, third = question.cells(rows).tolist()
            assert first != second or isinstance(question, LabelIs)
            assert first != third or isinstance(question, Agree)
            if isinstance(question, LabelIs | Agree | Block):
                assert second != third


@pytest.mark.parametrize("kind", ["random-response", "rappor", "pq", "subset-selection"])
def test_support_is_what_the_mechanism_counts(kind, entropy):
    counted = mechanism(kind, 1.0, 19)
    for value in range(19):
        report = counted.decode(counted.encode(counted.report(value, entropy)))
        assert [supports(report, cell) for cell in range(19)] == counted.tally(counted.stack([report])).tolist()


@pytest.mark.parametrize("name", NAMES)
def test_a_peer_answers_what_its_ticket_says_and_its_ledger_counts_the_script_s_prices(name, entropy):
    script = script_of(name)
    stage = Stage(DIGEST, script)
    for row in range(len(ROWS)):
        outputs = stage.draw(row, 8, entropy)
        assert outputs.support.shape == (8, len(ROWS))
        assert outputs.charged == sum(grains_up(event.epsilon) for event in script.prices.values())
        for place in outputs.places:
            assert len(place) == len(set(place)) == len(script.prices)
            assert sorted(script.name_of(*slot) for slot in place) == sorted(script.prices)


@pytest.mark.parametrize("row", range(len(ROWS)))
def test_at_a_large_epsilon_every_packet_speaks_for_the_peer_s_own_row(row, entropy):
    stage = Stage(DIGEST, make_script(params_of(make_study(30.0)), DIGEST))
    outputs = stage.draw(row, 30, entropy)
    assert outputs.support[:, row].tolist() == [1] * 30
    # The other rows are of other cells but for a question that a pair has in common.
    assert np.delete(outputs.support, row, axis=1).sum() < 60


def test_what_leaves_is_spent_and_is_the_bytes_of_the_ledger(entropy):
    script = script_of("paper")
    stage, ledger = Stage(DIGEST, script), MemoryLedger()
    columns, labels = corner_rows(script)
    peer = AnonMLPeer(DIGEST, script, bytes(32), {name: column[:1] for name, column in columns.items()}, labels[:1])
    answers = stage.run(peer, ledger, entropy)
    (total,) = ledger.totals()
    assert (total.held, total.spent) == (0, sum(grains_up(event.epsilon) for event in script.prices.values()))
    assert len(answers) == total.releases == 3
    assert {answer.ticket for answer in answers} == {bytes(32)}


def test_only_answers_are_packets_of_a_peer(entropy):
    """A message that has no price is not passed over: it would be a hole in the audit."""

    class Chatty(AnonMLPeer):
        def started(self, state, now, entropy):
            return state, (Send("aggregator", self.hello),)

    script = script_of("bits")
    stage = Stage(DIGEST, script, Chatty)
    Chatty.hello = stage.phases[0][0]
    with pytest.raises(AssertionError):
        stage.draw(0, 1, entropy)
