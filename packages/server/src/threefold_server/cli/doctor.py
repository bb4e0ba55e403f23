"""`threefold doctor`: what is wrong with a store, and which command mends it."""

from __future__ import annotations

from dataclasses import asdict

import typer
from pydantic import BaseModel

from threefold_server.cli.commands import Json
from threefold_server.cli.output import Failed, out, show_json, table
from threefold_server.cli.store import MODELS, check_exists, store_verb, with_service
from threefold_server.operations import doctor as examination
from threefold_server.service import Service
from threefold_server.settings import Settings

app = typer.Typer()


class FindingView(BaseModel):
    """One check; `remedy` is empty where nothing is wrong."""

    check: str
    detail: str
    remedy: str


class Report(BaseModel):
    """All checks."""

    findings: list[FindingView]


@store_verb(app, "threefold doctor --data ./memory", flags=MODELS)
def doctor(settings: Settings, json: Json = False) -> None:
    """Look for parked work, stale leases, vectors of another embedder, dead models, wrong clocks, a pending purge, and
    files that other users may read."""
    check_exists(settings)
    found: list[examination.Finding] = []

    async def work(service: Service) -> None:
        found.extend(await examination.examine(service))

    with_service(settings, work, claim=False)
    if json:
        show_json(Report(findings=[FindingView(**asdict(finding)) for finding in found]))
    else:
        rows = [(finding.check, finding.detail, finding.remedy or "ok") for finding in found]
        out.print(table("check", "found", "what to do", rows=rows))
    if wrong := [finding.check for finding in found if finding.remedy]:
        raise Failed(f"needs a look: {', '.join(wrong)}")
