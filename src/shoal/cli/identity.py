"""``shoal identity``: the public key under which an organisation stands on a roster."""

from __future__ import annotations

import json as json_format
from pathlib import Path

from shoal.cli.output import emit


def identity(*, name: str = "your name here", ledger: Path | None = None, json: bool = False) -> None:
    """Print your public key as a block of a roster file, to be sent to the analyst.

    A study of secure sums has a roster of all members. The key is made at the first call; its secret half stays in the file of your ledger,
    and a backup of that file is a backup of the key.

    Parameters
    ----------
    name
        What the others will call you.
    ledger
        The ledger file; SHOAL_LEDGER or the user's data directory where it is not given.
    json
        Print one JSON object.
    """
    from shoal.clock import SystemClock
    from shoal.entropy import SystemEntropy
    from shoal.participant.identity import master
    from shoal.participant.journal import Journal
    from shoal.participant.ledger_file import default_path
    from shoal.study.manifest import Member

    path = ledger or default_path()
    with Journal(path, SystemClock()) as journal:
        member = Member(name, master(journal, SystemEntropy()).public)
    block = f"[[member]]\nname = {json_format.dumps(member.name, ensure_ascii=False)}\nkey = {json_format.dumps(member.key.hex())}"
    # What follows is a comment, so that all of it can be appended to a roster.
    text = f"{block}\n\n# next      shoal join URL --data rows.csv"
    emit({"name": member.name, "key": member.key.hex(), "ledger": str(path)}, text, json=json)
