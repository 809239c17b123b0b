"""The journal against what a driver in memory keeps: after any steps and reopenings both hold the same."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import hypothesis.strategies as st
from hypothesis import given, settings

from shoal.clock import ManualClock
from shoal.participant.journal import Joined, Journal, Saved, Step
from shoal.participant.ledger_file import LedgerFile
from shoal.protocols.effects import AGGREGATOR
from shoal.protocols.settle import Outbound

QUESTIONS, TASKS, ALARMS = st.sampled_from(["q1", "q2"]), st.sampled_from(["t1", "t2"]), st.integers(0, 3)
LETTERS = st.one_of(
    st.binary(min_size=1, max_size=4).map(lambda payload: Outbound(AGGREGATOR, payload)),
    QUESTIONS.map(lambda question: Outbound(AGGREGATOR, b"", question)),
)
STEPS = st.builds(
    Step,
    st.binary(min_size=1, max_size=4),
    cursor=st.none() | st.integers(1, 9),
    letters=st.lists(LETTERS, max_size=3).map(tuple),
    dropped=st.none() | QUESTIONS,
    struck=st.lists(st.integers(1, 6), max_size=2).map(tuple),
    alarms=st.lists(ALARMS, max_size=2).map(tuple),
    rung=st.lists(ALARMS, max_size=2).map(tuple),
    begun=st.lists(TASKS, max_size=1).map(tuple),
    over=st.lists(TASKS, max_size=1).map(tuple),
    standing=st.sampled_from([None, None, None, "finished", "aborted"]),
)
ACTS = st.one_of(STEPS, st.sampled_from(["reopen", "deliver"]))


def after(saved: Saved, step: Step, numbers: tuple[int, ...]) -> Saved:
    """What a driver in memory would hold."""
    if step.standing == "aborted":
        saved = Saved(cursor=saved.cursor)
        step = replace(step, alarms=(), begun=())
    left = [(number, letter) for number, letter in saved.letters if number not in step.struck]
    kept = tuple((number, letter) for number, letter in left if step.dropped is None or letter.question != step.dropped)
    return Saved(
        step.state,
        max(saved.cursor, step.cursor or 0),
        (*kept, *zip(numbers, step.letters, strict=True)),
        tuple(sorted(set(saved.alarms) - set(step.rung) | set(step.alarms))),
        tuple(sorted((set(saved.tasks) | set(step.begun)) - set(step.over))),
    )


@settings(max_examples=25, deadline=None)
@given(st.lists(ACTS, max_size=8))
def test_the_journal_is_a_drivers_memory(acts: list[Step | str]) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        path, clock = Path(folder) / "ledger.db", ManualClock()
        with LedgerFile(path, clock) as ledger:
            journal, expected = Journal(path, clock), Saved()
            for study in ("d1", "d2"):
                journal.enter(Joined(study, "https://x.org", "https://x.org", bytes(32), b"", study, "rows"))
            journal.save("d2", Step(b"another", letters=(Outbound(AGGREGATOR, b"x"),), alarms=(1,), begun=("t1",)))
            others = journal.load("d2")
            for act in acts:
                match act:
                    case "reopen":
                        journal.close()
                        journal = Journal(path, clock)
                    case "deliver" if expected.letters:
                        journal.delivered("d1", expected.letters[0][0])
                        expected = replace(expected, letters=expected.letters[1:])
                    case Step():
                        expected = after(expected, act, journal.save("d1", act))
                assert journal.load("d1") == expected
                assert journal.load("d2") == others
            journal.close()
            ledger.verify()
