"""``shoal identity``: print the public key of an organisation for a roster.

The secret key never leaves the ledger's file.
"""

from __future__ import annotations

import json as json_format
from pathlib import Path

from shoal.cli.output import emit


def identity(
    *,
    name: str = "your name here",
    ledger: Path | None = None,
    new_ledger: bool = False,
    json: bool = False,
) -> None:
    """Print your public key as a block of a roster file, to send to the analyst.

    A study with secure sums has a roster of all members. The key is made at the first call. Its
    secret half stays in your ledger file, and a backup of that file is a backup of the key.

    Parameters
    ----------
    name
        Your name for the other members.
    ledger
        The ledger file. Default: SHOAL_LEDGER, or a file in your data directory.
    new_ledger
        Start a new ledger if there is none; needed without a terminal.
    json
        Print one JSON object.
    """
    from shoal.cli.ledger.paths import announce_ledger
    from shoal.clock import SystemClock
    from shoal.entropy import SystemEntropy
    from shoal.participant.journal import Journal
    from shoal.participant.keys import load_master_identity
    from shoal.participant.ledger_storage import find_ledger_path
    from shoal.study.manifest import RosterMember

    path = announce_ledger(ledger or find_ledger_path(), new_ledger=new_ledger)
    with Journal(path, SystemClock()) as journal:
        member = RosterMember(name, load_master_identity(journal, SystemEntropy()).public_key)
    block = (
        f"[[member]]\nname = {json_format.dumps(member.name, ensure_ascii=False)}\nkey = "
        f"{json_format.dumps(member.key.hex())}"
    )
    # The rest is a comment, so that the whole output can be appended to a roster.
    text = f"{block}\n\n# next      shoal join URL --data rows.csv"
    emit({"name": member.name, "key": member.key.hex(), "ledger": str(path)}, text, json=json)
