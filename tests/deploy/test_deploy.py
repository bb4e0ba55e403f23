"""The deployment files agree with each other, with the service, and with a real Postgres."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import psycopg
import pytest
import yaml

from fixtures.postgres import PostgresServer
from fixtures.served import PROGRAM, served

DEPLOY = Path(__file__).parents[2] / "deploy"
PASSWORD = "0123456789abcdef"


def tree(text: str) -> dict[str, Any]:
    """Parse a YAML mapping."""
    return cast(dict[str, Any], yaml.safe_load(text))


COMPOSE = tree((DEPLOY / "compose.yaml").read_text())
SERVICES = cast(dict[str, dict[str, Any]], COMPOSE["services"])


def test_compose_has_database_migration_and_service() -> None:
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
def test_long_running_services_have_health_checks_and_restart(name: str) -> None:
    assert SERVICES[name]["healthcheck"]["test"][0] == "CMD"
    assert SERVICES[name]["restart"] == "unless-stopped"


def test_service_starts_after_the_migration() -> None:
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


def test_mounted_files_and_build_contexts_exist() -> None:
    mounted = [volume.split(":")[0] for volume in SERVICES["postgres"]["volumes"] if volume.startswith("./")]
    built = [
        DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]
        for service in SERVICES.values()
        if "build" in service
    ]
    assert mounted == ["./init.sql"]
    assert (DEPLOY / mounted[0]).is_file()
    assert all(path.is_file() for path in built)


@pytest.fixture(scope="module")
def prepared_server() -> Iterator[PostgresServer]:
    """A server on which our SQL was run as in the image."""
    with PostgresServer() as server:
        psql = server.programs / "psql"
        command = [psql, "--no-psqlrc", "--set=ON_ERROR_STOP=1", f"--file={DEPLOY / 'init.sql'}", server.admin_url]
        subprocess.run(command, env=os.environ | {"APP_PASSWORD": PASSWORD}, check=True, stdout=subprocess.DEVNULL)
        yield server


@pytest.fixture
def database_url_here(prepared_server: PostgresServer) -> str:
    """The database URL of the service, with the values that compose fills in."""
    template = SERVICES["threefold"]["environment"]["THREEFOLD_DATABASE_URL"]
    with_password = re.sub(r"\$\{APP_PASSWORD[^}]*\}", PASSWORD, template)
    return with_password.replace("@postgres:5432/", f"@127.0.0.1:{prepared_server.port}/")


def test_init_sql_creates_a_plain_role_and_a_database_with_vector(database_url_here: str) -> None:
    with psycopg.connect(database_url_here) as connection:
        flags = connection.execute(
            "SELECT rolsuper, rolbypassrls FROM pg_roles WHERE rolname = current_user"
        ).fetchone()
        connection.execute("CREATE TABLE owned (embedding vector(3))")
        connection.rollback()
    assert flags == (False, False)


def test_commands_of_compose_start_a_healthy_service(database_url_here: str) -> None:
    variables = {"THREEFOLD_DATABASE_URL": database_url_here}
    _, *migrate = SERVICES["migrate"]["command"]
    subprocess.run([PROGRAM, *migrate], env=os.environ | variables, check=True)
    _, verb, *options = SERVICES["threefold"]["command"]
    assert verb == "serve"
    here = ["127.0.0.1" if option == "0.0.0.0" else option for option in options]
    with served(*here, **variables) as url:
        _, python, *arguments = SERVICES["threefold"]["healthcheck"]["test"]
        check = [argument.replace("http://127.0.0.1:8181", url) for argument in arguments]
        subprocess.run([python, *check], check=True)


def test_image_has_the_command_of_compose() -> None:
    (command,) = re.findall(r"^CMD (.*)$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    assert json.loads(command) == SERVICES["threefold"]["command"]
