"""Version 1 of the contract stays compatible: requests of older clients are accepted, and the fields they read
exist.

`openapi.v1.json` is the document of the last release. After a compatible change write it again: `uv run python
tests/server/http/test_compatibility.py`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from threefold.contract import paths
from threefold_server.app import create_app
from threefold_server.settings import Settings

RELEASED = Path(__file__).with_name("openapi.v1.json")


def current() -> dict[str, Any]:
    return create_app(Settings(embedder="hash")).openapi()


def breaks(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Return every change that breaks a client of the old document."""
    found: list[str] = []
    for path, operations in old["paths"].items():
        for method, operation in operations.items():
            now = new["paths"].get(path, {}).get(method)
            if now is None:
                found.append(f"{method} {path} is gone")
                continue
            found += [
                f"{method} {path}: status {status} is gone"
                for status in operation["responses"].keys() - now["responses"].keys()
            ]
            known = {parameter["name"] for parameter in operation.get("parameters", [])}
            for parameter in now.get("parameters", []):
                if parameter["required"] and parameter["name"] not in known:
                    found.append(f"{method} {path}: parameter {parameter['name']} became required")
    for name, schema in old["components"]["schemas"].items():
        found += _schema_breaks(name, schema, new["components"]["schemas"].get(name))
    return found


def _schema_breaks(name: str, old: dict[str, Any], new: dict[str, Any] | None) -> list[str]:
    if new is None:
        return [f"{name} is gone"]
    lost = old.get("properties", {}).keys() - new.get("properties", {}).keys()
    required = set(new.get("required", ())) - set(old.get("required", ()))
    is_request = old.get("additionalProperties") is False
    found = [f"{name}.{field} is gone" for field in lost]
    if is_request:
        found += [f"{name}.{field} became required" for field in required]
    return found


def test_contract_breaks_no_released_client() -> None:
    assert breaks(json.loads(RELEASED.read_text()), current()) == []


def test_released_document_is_up_to_date() -> None:
    assert json.loads(RELEASED.read_text()) == current(), "write it again as described in the module docstring"


def test_every_path_of_the_contract_has_a_route() -> None:
    named = {
        value.replace(":id}", "}") for value in vars(paths).values() if str(value).startswith(("/v1/", "/healthz"))
    }
    named -= {"/v1/sessions/{session_id}"}  # only the start of other paths
    assert named <= current()["paths"].keys()


def test_breaking_changes_are_detected() -> None:
    old, new = current(), current()
    del new["paths"]["/v1/recall"]
    del new["components"]["schemas"]["Turn"]["properties"]["seq"]
    new["components"]["schemas"]["WriteRequest"]["required"].append("visibility")
    assert breaks(old, new) == [
        "post /v1/recall is gone",
        "Turn.seq is gone",
        "WriteRequest.visibility became required",
    ]


if __name__ == "__main__":
    RELEASED.write_text(json.dumps(current(), indent=1) + "\n")
