"""``shoal statement``: a study on one page to sign, and as a registry record."""

from __future__ import annotations

import json as json_format
from pathlib import Path
from typing import Any

from shoal.cli.output import emit
from shoal.cli.report import write_page
from shoal.files import write_new
from shoal.report import make_registry_record
from shoal.report.registry import list_missing_fields
from shoal.report.statement import make_draft_page
from shoal.study.delivery import explain_draft_digest, make_offered_manifest
from shoal.study.loader import load_study
from shoal.study.manifest import Manifest
from shoal.text import escape_text, shell_quote

STATEMENT_FILE = "statement.html"


def statement(
    study: Path,
    /,
    *,
    out: Path | None = None,
    registry: Path | None = None,
    tickets: bool = False,
    json: bool = False,
) -> None:
    """Write a study on one page, for an ethics board or a data protection officer to sign.

    The text is the one that participants will read when the study is served. The coordinator of a
    served study has its page, with the digest to which they agree: /studies/DIGEST/statement.

    Parameters
    ----------
    study
        The study file.
    out
        The page, which prints on A4; by default statement.html next to the study. An earlier page
        is replaced.
    registry
        Also write a record for the registry of deployments of differential privacy, as JSON, to a
        new file. Fields that only the curator knows are null.
    tickets
        For a study that will be served with --tickets.
    json
        Print one JSON object, including the record.
    """
    manifest = Manifest(load_study(study))
    page, record = (
        make_draft_page(manifest, tickets=tickets).encode(),
        _make_record(manifest, tickets),
    )
    remark = explain_draft_digest(manifest, uses_tickets=tickets)
    target = study.parent / STATEMENT_FILE if out is None else out
    if registry is not None:
        write_new(
            registry, (json_format.dumps(record, indent=2, ensure_ascii=False) + "\n").encode()
        )
    try:
        write_page(target, page, [study])
    except BaseException:
        if registry is not None:
            registry.unlink()
        raise
    missing = list(list_missing_fields(record))
    lines = [f"wrote     {escape_text(str(target))}   study {manifest.short_digest}"]
    lines += [] if remark is None else [f"digest    {remark}"]
    lines += (
        []
        if registry is None
        else [f"wrote     {escape_text(str(registry))}", f"fill in   {', '.join(missing)}"]
    )
    data = {
        "statement": str(target),
        "registry": None if registry is None else str(registry),
        "digest": manifest.digest.hex(),
        "digest_remark": remark,
        "record": record,
        "to_fill_in": missing,
    }
    emit(
        data,
        "\n".join(lines),
        json=json,
        next_command=f"shoal serve {shell_quote(study)}{' --tickets' if tickets else ''}",
    )


def _make_record(draft: Manifest, tickets: bool) -> dict[str, Any]:
    """Return the record of the study as it will be served, with the digest of the draft."""
    offered = make_offered_manifest(draft, uses_tickets=tickets)
    record = make_registry_record(offered)
    implementation = record["deployment"]["implementation"]
    information = implementation["additional_information"].replace(
        offered.short_digest, draft.short_digest
    )
    implementation["additional_information"] = information
    return {**record, "url_slug": f"shoal-{draft.short_digest}"}
