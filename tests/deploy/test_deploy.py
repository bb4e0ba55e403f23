"""The deployment files agree with each other, with the service, and with what Postgres really does."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any, cast

import psycopg
import pytest
import yaml

from fixtures.postgres import PostgresServer

DEPLOY = Path(__file__).parents[2] / "deploy"
PASSWORD = "correct horse ' battery"


def tree(text: str) -> dict[str, Any]:
    """A YAML mapping."""
    return cast(dict[str, Any], yaml.safe_load(text))


COMPOSE = tree((DEPLOY / "compose.yaml").read_text())
SERVICES = cast(dict[str, dict[str, Any]], COMPOSE["services"])


def test_compose_has_the_database_the_migration_and_the_service() -> None:
    assert SERVICES.keys() == {"postgres", "migrate", "threefold"}


@pytest.mark.parametrize("name", SERVICES)
def test_images_are_pinned(name: str) -> None:
    image, _, tag = SERVICES[name]["image"].rpartition(":")
    assert image
    assert tag not in ("", "latest")


def test_images_of_the_container_file_are_pinned() -> None:
    images = re.findall(r"^FROM (\S+)", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    assert images
    assert all(re.fullmatch(r"python:3\.\d+-slim-\w+", image) for image in images)


@pytest.mark.parametrize("name", ["postgres", "threefold"])
def test_what_runs_for_long_is_watched_and_restarted(name: str) -> None:
    assert SERVICES[name]["healthcheck"]["test"][0] == "CMD"
    assert SERVICES[name]["restart"] == "unless-stopped"


def test_the_service_starts_once_the_database_is_migrated() -> None:
    assert SERVICES["migrate"]["depends_on"] == {"postgres": {"condition": "service_healthy"}}
    assert SERVICES["threefold"]["depends_on"] == {"migrate": {"condition": "service_completed_successfully"}}


def test_secrets_come_from_the_environment_and_have_no_default() -> None:
    secrets = [
        value
        for service in SERVICES.values()
        for name, value in service["environment"].items()
        if name.endswith(("PASSWORD", "URL"))
    ]
    assert len(secrets) == 4
    assert all(re.search(r"\$\{[A-Z_]+:\?", secret) for secret in secrets)
    assert re.findall(r"^(\w+)=(.*)$", (DEPLOY / ".env.example").read_text(), re.MULTILINE) == [
        ("POSTGRES_PASSWORD", ""),
        ("APP_PASSWORD", ""),
    ]


def test_ports_are_published_on_loopback_only() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert ports == ["127.0.0.1:8181:8181"]


def test_every_file_that_is_mounted_or_built_from_exists() -> None:
    mounted = [volume.split(":")[0] for volume in SERVICES["postgres"]["volumes"] if volume.startswith("./")]
    built = [
        DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]
        for service in SERVICES.values()
        if "build" in service
    ]
    assert mounted == ["./init.sql"]
    assert (DEPLOY / mounted[0]).is_file()
    assert all(path.is_file() for path in built)


def test_init_sql_makes_a_plain_role_with_a_database_that_has_vector() -> None:
    with PostgresServer() as server:
        psql = server.programs / "psql"
        command = [psql, "--no-psqlrc", "--set=ON_ERROR_STOP=1", f"--file={DEPLOY / 'init.sql'}", server.admin_url]
        subprocess.run(command, env=os.environ | {"APP_PASSWORD": PASSWORD}, check=True)
        connection = psycopg.connect(server.admin_url, user="threefold_app", password=PASSWORD, dbname="threefold")
        with connection:
            flags = connection.execute(
                "SELECT rolsuper, rolbypassrls FROM pg_roles WHERE rolname = current_user"
            ).fetchone()
            extension = connection.execute("SELECT 1 FROM pg_extension WHERE extname = 'vector'").fetchone()
            connection.execute("CREATE TABLE owned (embedding vector(3))")
    assert flags == (False, False)
    assert extension == (1,)
