"""Previews: an example before consent, which is another draw; sent answers after it."""

from __future__ import annotations

import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from shoal.clock import ManualClock
from shoal.crypto.identity import Identity
from shoal.entropy import SeededEntropy, SystemEntropy
from shoal.errors import ShoalError
from shoal.participant.ledger_file import LedgerFile
from shoal.participant.preview import ShownAnswer, draw_example, list_sent_answers
from shoal.privacy.ledger.records import ReleaseState
from shoal.protocols.anonml.messages import AnonMLAnswer
from shoal.protocols.base import START
from shoal.protocols.ddml.messages import DDMLUpdate
from shoal.protocols.pfds.messages import HolderTables
from shoal.study.handle import StudyHandle
from shoal.study.manifest import Manifest
from tests.support.credentials import token_manifest
from tests.support.participants import make_manifest, make_table

ME = Identity.from_seed(bytes(32))
PFDS = make_manifest("pfds", 3, pfds={"n_holders": 3})


def draw(manifest: Manifest, n_rows: int = 1) -> tuple[ShownAnswer, ...]:
    study = StudyHandle(manifest)
    return draw_example(study, study.encode_rows(make_table(n_rows)), ME, SystemEntropy(), START)


@pytest.mark.parametrize(
    ("manifest", "kind"),
    [
        (make_manifest("anonml", 3), AnonMLAnswer),
        (token_manifest(n=2), AnonMLAnswer),
        (make_manifest("ddml", 3, ddml={"n_instances": 2}), DDMLUpdate),
        (PFDS, HolderTables),
    ],
)
def test_example_is_fresh_draw_of_each_protocol(manifest: Manifest, kind: type[Any]) -> None:
    drawn = [draw(manifest) for _ in range(3)]
    assert all(isinstance(one.message, kind) for answers in drawn for one in answers)
    assert all(drawn) and len({answers[0].payload for answers in drawn}) == 3


@pytest.mark.parametrize(
    "more",
    [{}, {"variant": "paper", "anonml": {"n_partitions": 2, "n_subsets": 1, "subset_size": 1}}],
)
def test_example_has_answers_of_study_with_phases(more: dict[str, Any]) -> None:
    """Without public bins the first phases place quantiles, and the last one depends on them."""
    features = [{"name": "heat", "range": [0, 40], "missing": False}]
    manifest = make_manifest("anonml", 3, feature=features, **more)
    study = StudyHandle(manifest)
    assert study.script.n_phases > 1
    for _ in range(10):
        answers = draw(manifest)
        assert answers and {one.question for one in answers} <= set(study.script.prices)


def test_example_of_organisations_uses_random_position() -> None:
    seats = Counter(draw(PFDS, 9)[0].message.submission for _ in range(40))
    assert seats.total() == 40


def test_protocol_with_masked_answers_has_no_example() -> None:
    others = tuple(Identity.from_seed(bytes([i]) * 32).public_key for i in (1, 2))
    keys = (ME.public_key, *others)
    assert draw(make_manifest("sdq", 3, keys, sdq={"n_databases": 3}), 9) == ()
    delta = {"epsilon": 1.0, "delta": 1e-6}
    assert (
        draw(
            make_manifest(
                "pfds", 3, keys, trust="secure-sum", privacy=delta, pfds={"n_holders": 3}
            ),
            9,
        )
        == ()
    )


def test_example_refuses_seeded_entropy() -> None:
    study = StudyHandle(PFDS)
    with pytest.raises(ShoalError) as refused:
        draw_example(study, study.encode_rows(make_table(3)), ME, SeededEntropy(1), START)
    assert refused.value.code == "ENTROPY-001"


def test_stored_answer_is_shown_only_after_it_arrived(tmp_path: Path) -> None:
    """A participant who saw the answer earlier could still leave if it did not like it."""
    study, path = StudyHandle(PFDS), tmp_path / "me.db"
    digest = study.digest.hex()
    [example] = draw(PFDS, 9)
    with LedgerFile(path, ManualClock()) as ledger:
        account = ledger.account(study.digest, "rows.csv", "https://x.example", "Wind")
        account.reserve("tables", study.plan.charges[0])
        shown = [list_sent_answers(study, ledger)]
        account.store("tables", example.payload)
        shown.append(list_sent_answers(study, ledger))
        account.mark_sending("tables")
        shown.append(list_sent_answers(study, ledger))
        assert shown == [(), (), ()]
        account.mark_sent("tables")
        assert list_sent_answers(study, ledger) == (
            ShownAnswer("tables", example.payload, example.message),
        )
        assert ledger.find_entry(digest, "tables").state is ReleaseState.SENT
    with sqlite3.connect(path) as db:
        assert db.execute("SELECT count(*) FROM outbox").fetchone() == (1,)
