"""The journal against a driver in memory: equal contents after any steps and reopenings."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import hypothesis.strategies as st
from hypothesis import given, settings

from shoal.clock import ManualClock
from shoal.participant.journal import JoinedStudy, Journal, JournalUpdate, SavedPeerState
from shoal.participant.ledger_file import LedgerFile
from shoal.protocols.driver import OutgoingMessage
from shoal.protocols.effects import AGGREGATOR

QUESTIONS, TASKS, ALARMS = (
    st.sampled_from(["q1", "q2"]),
    st.sampled_from(["t1", "t2"]),
    st.integers(0, 3),
)
MESSAGES = st.one_of(
    st.binary(min_size=1, max_size=4).map(lambda payload: OutgoingMessage(AGGREGATOR, payload)),
    QUESTIONS.map(lambda question: OutgoingMessage(AGGREGATOR, b"", question)),
)
STEPS = st.builds(
    JournalUpdate,
    st.binary(min_size=1, max_size=4),
    cursor=st.none() | st.integers(1, 9),
    messages=st.lists(MESSAGES, max_size=3).map(tuple),
    dropped_question=st.none() | QUESTIONS,
    delivered_numbers=st.lists(st.integers(1, 6), max_size=2).map(tuple),
    alarms=st.lists(ALARMS, max_size=2).map(tuple),
    fired_alarms=st.lists(ALARMS, max_size=2).map(tuple),
    started_tasks=st.lists(TASKS, max_size=1).map(tuple),
    ended_tasks=st.lists(TASKS, max_size=1).map(tuple),
    status=st.sampled_from([None, None, None, "finished", "aborted"]),
)
ACTIONS = st.one_of(STEPS, st.sampled_from(["reopen", "deliver"]))


def apply_step(
    saved: SavedPeerState, step: JournalUpdate, numbers: tuple[int, ...]
) -> SavedPeerState:
    """Return the contents of a driver in memory after a step."""
    if step.status == "aborted":
        saved = SavedPeerState(cursor=saved.cursor)
        step = replace(step, alarms=(), started_tasks=())
    left = [
        (number, message)
        for number, message in saved.messages
        if number not in step.delivered_numbers
    ]
    kept = tuple(
        (number, message)
        for number, message in left
        if step.dropped_question is None or message.question != step.dropped_question
    )
    return SavedPeerState(
        step.state,
        max(saved.cursor, step.cursor or 0),
        (*kept, *zip(numbers, step.messages, strict=True)),
        tuple(sorted(set(saved.alarms) - set(step.fired_alarms) | set(step.alarms))),
        tuple(sorted((set(saved.tasks) | set(step.started_tasks)) - set(step.ended_tasks))),
    )


@settings(max_examples=25, deadline=None)
@given(st.lists(ACTIONS, max_size=8))
def test_journal_equals_memory_of_driver(actions: list[JournalUpdate | str]) -> None:
    with tempfile.TemporaryDirectory(
        dir="/dev/shm" if Path("/dev/shm").is_dir() else None
    ) as folder:
        path, clock = Path(folder) / "ledger.db", ManualClock()
        with LedgerFile(path, clock) as ledger:
            journal, expected = Journal(path, clock), SavedPeerState()
            for study in ("d1", "d2"):
                journal.record_study(
                    JoinedStudy(
                        study, "https://x.org", "https://x.org", bytes(32), b"", study, "rows"
                    )
                )
            journal.save(
                "d2",
                JournalUpdate(
                    b"another",
                    messages=(OutgoingMessage(AGGREGATOR, b"x"),),
                    alarms=(1,),
                    started_tasks=("t1",),
                ),
            )
            others = journal.load("d2")
            for action in actions:
                match action:
                    case "reopen":
                        journal.close()
                        journal = Journal(path, clock)
                    case "deliver" if expected.messages:
                        journal.remove_messages("d1", expected.messages[0][0])
                        expected = replace(expected, messages=expected.messages[1:])
                    case JournalUpdate():
                        expected = apply_step(expected, action, journal.save("d1", action))
                assert journal.load("d1") == expected
                assert journal.load("d2") == others
            journal.close()
            ledger.verify()
