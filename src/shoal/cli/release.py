"""``shoal release``: verify a signed release, and compare a release with real rows."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from cyclopts import App

from shoal.cli.arguments import read_table
from shoal.cli.output import emit
from shoal.crypto.identity import KEY_BYTES
from shoal.entropy import SystemEntropy
from shoal.errors import UsageError
from shoal.releases.artifact import VerifiedRelease, read_signed_release
from shoal.releases.comparison import NOTICE, compare_release
from shoal.text import escape_text, format_count, shell_quote

app = App(
    name="release",
    help="Check a release of another holder; compare a release with real rows.",
    help_format="markdown",
)

_UNKNOWN_KEY = (
    "valid for the key in the file, which does not prove who signed; give the signer's key from "
    "another channel: --key HEX"
)
_SIMULATION = "a simulation: it protects nothing; its figures are those of a real release"


@app.command
def check(path: Path, /, *, key: str | None = None, json: bool = False) -> None:
    """Check signature, statement, rows and quality report of a release, and print its label.

    The exit code is 7 if a check fails.

    Parameters
    ----------
    path
        The directory of the release.
    key
        The public key of the signer in hexadecimal digits, received over another channel.
    json
        Print one JSON object.
    """
    signed = read_signed_release(path, None if key is None else [_parse_key(key)])
    release, verdict = (
        signed.release,
        _UNKNOWN_KEY if key is None else "valid, and signed with the given key",
    )
    lines = [
        *([("WARNING", _SIMULATION)] if release.is_simulated else []),
        (
            "release",
            f"{escape_text(str(path))}: {signed.file} with "
            f"{format_count(len(release.dataset), 'row')}",
        ),
        ("signer", escape_text(signed.signer.name)),
        ("key", signed.signer.key.hex()),
        ("study", f"{release.manifest.short_digest} ({release.manifest.digest.hex()})"),
        *(("quality", str(finding)) for finding in signed.quality),
        ("verdict", verdict),
    ]
    data = _make_release_data(path, signed) | {
        "signer": {
            "name": signed.signer.name,
            "key": signed.signer.key.hex(),
            "is_expected": key is not None,
        },
        "study": release.manifest.digest.hex(),
        "label": release.statement.to_dict(),
        "quality": [finding.model_dump() for finding in signed.quality],
        "verdict": verdict,
    }
    text = f"{release.statement}\n\n" + "\n".join(f"{head:<10}{line}" for head, line in lines)
    following = (
        f"shoal release check {shell_quote(path)} --key HEX"
        if key is None
        else f"shoal release compare {shell_quote(path)} --data rows.csv"
    )
    emit(data, text, json=json, next_command=following)


@app.command(name="compare")
def compare_(path: Path, /, *, data: str, out: Path | None = None, json: bool = False) -> None:
    """Compare a release with your real rows; the result is confidential.

    The printed or written figures are computed from real rows without noise, and no privacy
    statement covers them.

    Parameters
    ----------
    path
        The directory of the release.
    data
        The real rows: a table (.csv, .csv.gz, .parquet, .db#table) that fits the study. It is not
        sent anywhere.
    out
        A new file that only you can read; the figures are then not printed. It must not be in the
        directory of a release.
    json
        Print one JSON object.
    """
    signed = read_signed_release(path)
    comparison = compare_release(signed.release, read_table(data), SystemEntropy())
    facts = _make_release_data(path, signed)
    following = f"shoal release check {shell_quote(path)}"
    if out is None:
        emit(facts | comparison.to_dict(), str(comparison), json=json, next_command=following)
        return
    comparison.write(out)
    text = f"wrote     {escape_text(str(out))}, readable only by you\nWARNING   {NOTICE}"
    emit(facts | {"notice": NOTICE, "out": str(out)}, text, json=json, next_command=following)


def _parse_key(text: str) -> bytes:
    with suppress(ValueError):
        key = bytes.fromhex(text)
        if len(key) == KEY_BYTES:
            return key
    fix = f"Give {2 * KEY_BYTES} hexadecimal digits, in the form that shoal release check prints."
    raise UsageError("USAGE-001", f"--key {text!a:.80} is not a public key.", fix=fix)


def _make_release_data(path: Path, signed_release: VerifiedRelease) -> dict[str, object]:
    release = signed_release.release
    return {
        "release": str(path),
        "simulation": release.is_simulated,
        "file": signed_release.file,
        "rows": len(release.dataset),
    }
