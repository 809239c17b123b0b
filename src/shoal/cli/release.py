"""``shoal release``: is a release what its signer says, and what has it in common with the rows that one holds."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from cyclopts import App

from shoal.cli.check import read_table
from shoal.cli.output import emit
from shoal.crypto.roster import KEY_BYTES
from shoal.entropy import SystemEntropy
from shoal.errors import UsageError
from shoal.names import counted, shell_word, shown
from shoal.releases.artefact import Signed, read
from shoal.releases.comparison import NOTICE, compare

app = App(name="release", help="Check a release of another holder; compare one with real rows.", help_format="markdown")

_UNKNOWN = "valid for the key in the file, which proves nothing about who that is; a key that came by another way does: --key HEX"
_SIMULATION = "a simulation: nothing was protected by it, and its figures say what a real release would cost"


@app.command
def check(path: Path, /, *, key: str | None = None, json: bool = False) -> None:
    """Check the signature, the statement, the rows and the quality report of a release, and print its label.

    The exit code is 7 where a check fails.

    Parameters
    ----------
    path
        The directory of the release.
    key
        The public key of its signer, in hexadecimal digits, as the signer gave it to you by another way.
    json
        Print one JSON object.
    """
    signed = read(path, None if key is None else [_key(key)])
    release, verdict = signed.release, _UNKNOWN if key is None else "valid, and signed with the key that you gave"
    lines = [
        *([("WARNING", _SIMULATION)] if release.is_simulated else []),
        ("release", f"{shown(str(path))}: {signed.file} with {counted(len(release.dataset), 'row')}"),
        ("signer", shown(signed.signer.name)),
        ("key", signed.signer.key.hex()),
        ("study", f"{release.manifest.short} ({release.manifest.digest.hex()})"),
        *(("quality", str(finding)) for finding in signed.quality),
        ("verdict", verdict),
    ]
    data = _data(path, signed) | {
        "signer": {"name": signed.signer.name, "key": signed.signer.key.hex(), "is_expected": key is not None},
        "study": release.manifest.digest.hex(),
        "label": release.statement.to_dict(),
        "quality": [finding.model_dump() for finding in signed.quality],
        "verdict": verdict,
    }
    text = f"{release.statement}\n\n" + "\n".join(f"{head:<10}{line}" for head, line in lines)
    following = (
        f"shoal release check {shell_word(path)} --key HEX" if key is None else f"shoal release compare {shell_word(path)} --data rows.csv"
    )
    emit(data, text, json=json, next_command=following)


@app.command(name="compare")
def compare_(path: Path, /, *, data: str, out: Path | None = None, json: bool = False) -> None:
    """Compare a release with the real rows that you hold: for your eyes only.

    What is printed or written is computed from real rows without any noise, and no statement covers it.

    Parameters
    ----------
    path
        The directory of the release.
    data
        The real rows: a table (.csv, .csv.gz, .parquet, .db#table) that fits the study. It is read here and goes nowhere.
    out
        A new file to write to, which only you may read; nothing else is printed then. It must not lie in the directory of a release.
    json
        Print one JSON object.
    """
    signed = read(path)
    comparison = compare(signed.release, read_table(data), SystemEntropy())
    told = _data(path, signed)
    following = f"shoal release check {shell_word(path)}"
    if out is None:
        emit(told | comparison.to_dict(), str(comparison), json=json, next_command=following)
        return
    comparison.write(out)
    text = f"wrote     {shown(str(out))}, for your eyes only\nWARNING   {NOTICE}"
    emit(told | {"notice": NOTICE, "out": str(out)}, text, json=json, next_command=following)


def _key(text: str) -> bytes:
    with suppress(ValueError):
        key = bytes.fromhex(text)
        if len(key) == KEY_BYTES:
            return key
    fix = f"Give {2 * KEY_BYTES} hexadecimal digits, as shoal release check prints them."
    raise UsageError("USAGE-001", f"--key {text!a:.80} is not a public key.", fix=fix)


def _data(path: Path, signed: Signed) -> dict[str, object]:
    release = signed.release
    return {"release": str(path), "simulation": release.is_simulated, "file": signed.file, "rows": len(release.dataset)}
