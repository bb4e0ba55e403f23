"""`threefold doctor`: checks of a store, each with the command that repairs it."""

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
    """The result of one check; `remedy` is empty if nothing is wrong."""

    check: str
    detail: str
    remedy: str


class Report(BaseModel):
    """The results of all checks."""

    findings: list[FindingView]


@store_verb(app, "threefold doctor --data ./memory", flags=MODELS)
def doctor(settings: Settings, json: Json = False) -> None:
    """Check a store and print for each problem the command that repairs it. Exit code 1 if there is a problem.

    The checks find parked work, stale leases, vectors of another embedder, models that do not answer, clocks that
    differ, a pending purge, and files that other users of the machine may read.
    """
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
    if problems := [finding.check for finding in found if finding.remedy]:
        raise Failed(f"problems found: {', '.join(problems)}")
