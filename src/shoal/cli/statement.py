"""``shoal statement``: a study on one page for those who must sign it off, and as a record for a registry."""

from __future__ import annotations

import json as json_format
from pathlib import Path
from typing import Any

from shoal.cli.output import emit
from shoal.cli.report import write_page
from shoal.models.files import write_new
from shoal.names import shell_word, shown
from shoal.report import registry_record
from shoal.report.registry import to_fill_in
from shoal.report.statement import draft_page
from shoal.study.load import load
from shoal.study.manifest import Manifest
from shoal.study.wording_tokens import as_offered, remark_on_digest

NAME = "statement.html"


def statement(study: Path, /, *, out: Path | None = None, registry: Path | None = None, tickets: bool = False, json: bool = False) -> None:
    """Write a study on one page, for an ethics board or a data-protection officer to sign.

    It is worded as participants will read it where the study is served. The page of a study that is served, with the digest to which they
    agree, is at its coordinator: /studies/DIGEST/statement.

    Parameters
    ----------
    study
        The study file.
    out
        The page, which prints on A4; without it statement.html beside the study. An earlier page is replaced.
    registry
        Also a record for the registry of deployments of differential privacy, as JSON, into a new file. What only the curator knows is null
        in it.
    tickets
        For a study that will be served with --tickets.
    json
        Print one JSON object, with the record in it.
    """
    manifest = Manifest(load(study))
    page, record = draft_page(manifest, tickets=tickets).encode(), _record(manifest, tickets)
    remark = remark_on_digest(manifest, tickets=tickets)
    target = study.parent / NAME if out is None else out
    if registry is not None:
        write_new(registry, (json_format.dumps(record, indent=2, ensure_ascii=False) + "\n").encode())
    try:
        write_page(target, page, [study])
    except BaseException:
        if registry is not None:
            registry.unlink()
        raise
    missing = list(to_fill_in(record))
    lines = [f"wrote     {shown(str(target))}   study {manifest.short}"]
    lines += [] if remark is None else [f"digest    {remark}"]
    lines += [] if registry is None else [f"wrote     {shown(str(registry))}", f"fill in   {', '.join(missing)}"]
    data = {
        "statement": str(target),
        "registry": None if registry is None else str(registry),
        "digest": manifest.digest.hex(),
        "digest_remark": remark,
        "record": record,
        "to_fill_in": missing,
    }
    emit(data, "\n".join(lines), json=json, next_command=f"shoal serve {shell_word(study)}{' --tickets' if tickets else ''}")


def _record(draft: Manifest, tickets: bool) -> dict[str, Any]:
    """The record in the words of the study as it will be served, under the digest that it has so far."""
    offered = as_offered(draft, tickets=tickets)
    record = registry_record(offered)
    implementation = record["deployment"]["implementation"]
    information = implementation["additional_information"].replace(offered.short, draft.short)
    implementation["additional_information"] = information
    return {**record, "url_slug": f"shoal-{draft.short}"}
