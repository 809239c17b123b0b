"""``shoal doctor``: missing or broken parts of this machine; epsilons of other frameworks."""

from __future__ import annotations

from pathlib import Path

from cyclopts import App

from shoal.cli.doctor.epsilon import epsilon, format_paragraph
from shoal.cli.doctor.machine import BROKEN, MachineFinding, run_checks
from shoal.cli.output import emit
from shoal.text import format_count

app = App(
    name="doctor",
    help="Check this machine, or recompute the epsilon of another framework's configuration.",
    help_format="markdown",
)
app.command(epsilon)


@app.default
def doctor(*, ledger: Path | None = None, port: int = 8700, json: bool = False) -> None:
    """Check this machine: versions, extras, clock, entropy, disk, ledger, port, SQLite and more.

    Tor, core dumps and memory are checked too. The command sends, spends and changes nothing, and
    contacts no other machine. The exit code is 0 unless something is broken; an extra that is not
    installed is missing, and not broken.

    Parameters
    ----------
    ledger
        The ledger file; by default SHOAL_LEDGER or the user's data directory.
    port
        The port on which a coordinator would listen.
    json
        Print one JSON object.
    """
    findings = run_checks(ledger, port)
    broken = [finding for finding in findings if finding.state == BROKEN]
    data = {"ok": not broken, "checks": [finding.to_dict() for finding in findings]}
    next_command = "shoal hello" if not broken else broken[0].fix
    emit(
        data,
        "\n".join(line for finding in findings for line in _format_finding(finding))
        + _format_summary(findings),
        json=json,
        next_command=next_command,
    )
    if broken:
        raise SystemExit(1)


def _format_finding(finding: MachineFinding) -> list[str]:
    lines = format_paragraph(finding.name, finding.what)
    marked = [f"{finding.state if i == 0 else '':<9}{line}" for i, line in enumerate(lines)]
    return marked if finding.fix is None else [*marked, f"{'':<9}{'':<14}{finding.fix}"]


def _format_summary(findings: list[MachineFinding]) -> str:
    counts = {
        state: sum(finding.state == state for finding in findings)
        for state in dict.fromkeys(finding.state for finding in findings)
    }
    return (
        "\n\n"
        + ", ".join(f"{n} {state}" for state, n in counts.items())
        + f" of {format_count(len(findings), 'check')}"
    )
