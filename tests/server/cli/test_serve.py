"""`threefold serve` and `worker` as processes, and each reason not to start as one line."""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from fixtures.command_line import THREEFOLD, Run, clean_environment, running
from fixtures.issuer import Issuer
from fixtures.postgres import Databases
from threefold import MemoryClient
from threefold.errors import Unauthenticated, Unavailable
from threefold_server.cli.store import with_service
from threefold_server.service import Service
from threefold_server.settings import Settings
from threefold_server.telemetry import JsonFormatter

JWT = ["--mode", "jwt", "--jwt-issuer", "https://issuer.example", "--jwt-audience", "threefold"]
SAID = {"role": "user", "content": "I deploy to staging on Fridays."}


def test_serve_answers_at_the_printed_address_and_drains(tmp_path: Path) -> None:
    arguments = ["serve", "--port", "0", "--data", str(tmp_path), "--embedder", "hash"]
    with running(*arguments, log_level="warning") as process:
        with process.client("ana") as memory:
            memory.write("s1", [SAID])
            assert memory.recall("when do I deploy?", session_id="s2").memories[0].text == SAID["content"]
        assert process.stop() == 0
        assert process.rest == ""
    with running(*arguments) as process, process.client("ana") as memory:
        assert memory.turns("s1").turns[0].content == SAID["content"]


def test_flag_overrides_the_environment(tmp_path: Path) -> None:
    other = f"sqlite:///{tmp_path / 'other.db'}"
    arguments = ["serve", "--port", "0", "--data", str(tmp_path / "flagged"), "--allow-user-level"]
    with running(*arguments, embedder="hash", database_url=other, allow_user_level="false") as process:
        assert process.client().whoami().ceiling == "user"
    assert (tmp_path / "flagged" / "threefold.db").exists()
    assert not (tmp_path / "other.db").exists()


def test_tokens_are_verified_by_the_served_process(tmp_path: Path, issuer: Issuer, jwks_url: str) -> None:
    """While the issuer is down, tokens with a known key are accepted and others refused."""
    arguments = ["serve", "--port", "0", "--data", str(tmp_path), *JWT, "--jwt-jwks-url", jwks_url]
    with running(*arguments, embedder="hash") as process:
        with MemoryClient(process.first_line, api_key=issuer.token(), timeout=60) as memory:
            memory.write("s1", [SAID])
            issuer.down = True
            assert memory.turns("s1").turns[0].content == SAID["content"]
        issuer.rotate("unknown")
        with (
            MemoryClient(process.first_line, api_key=issuer.token(), timeout=60) as memory,
            pytest.raises((Unauthenticated, Unavailable)),
        ):
            memory.whoami()
        assert process.stop() == 0


def test_several_processes_serve_one_postgres(postgres_url: str) -> None:
    arguments = ["serve", "--port", "0", "--workers", "2", "--embedder", "hash"]
    with running(*arguments, database_url=postgres_url) as process:
        with process.client() as memory:
            memory.write("s1", [SAID])
            assert memory.wait("s1").indexed_upto == 1
        assert process.stop() == 0


def test_worker_process_does_the_background_work(postgres_url: str) -> None:
    settings = {"embedder": "hash", "database_url": postgres_url}
    with running("serve", "--port", "0", "--consolidate", "off", **settings) as service, service.client() as memory:
        memory.write("s1", [SAID])
        with running("worker", **settings) as worker:
            assert worker.first_line.startswith("Working")
            assert memory.wait("s1").indexed_upto == 1
            assert worker.stop() == 0


def test_server_error_is_logged_without_its_message() -> None:
    try:
        raise RuntimeError("said in confidence")
    except RuntimeError:
        record = logging.LogRecord("uvicorn.error", logging.ERROR, __file__, 1, "failed", None, sys.exc_info())
    line = JsonFormatter().format(record)
    assert "RuntimeError" in line
    assert "confidence" not in line


def test_error_inside_a_task_group_is_raised_alone(tmp_path: Path) -> None:
    async def work(_: Service) -> None:
        async with anyio.create_task_group():
            raise Unavailable("the database went away")

    settings = Settings(data=tmp_path, embedder="hash")
    with pytest.raises(Unavailable, match="went away"):
        with_service(settings, work)


@pytest.mark.parametrize(
    ("arguments", "settings", "message"),
    [
        (["--port", "70000"], {}, "--port (THREEFOLD_PORT): Input should be less than or equal to 65535"),
        ([], {"port": "x"}, "--port (THREEFOLD_PORT): Input should be a valid integer"),
        (["--host", "0.0.0.0"], {}, "host: mode 'dev' trusts its callers"),
        (["--workers", "2"], {}, "several processes need Postgres"),
        (["--embedder", "nonsense"], {}, "unknown embedder 'nonsense'"),
        (
            ["--embedder", "openai:own"],
            {},
            "dimensions of the embedder 'openai:own' are unknown; set embedder_dimensions",
        ),
        (["--database-url", "mysql://x"], {}, "(THREEFOLD_DATABASE_URL): must start with postgresql://"),
        (["--compaction-target", "9", "--compaction-trigger", "8"], {}, "compaction marks"),
        (["--mode", "jwt"], {}, "exactly one of jwt_jwks_url, jwt_jwks_file, jwt_secret"),
        (["--mode", "jwt"], {"jwt_secret": "x" * 32}, "needs jwt_issuer and jwt_audience"),
        ([*JWT, "--jwt-jwks-file", "missing"], {}, "jwt_jwks_file: no file at missing"),
        ([*JWT, "--jwt-jwks-url", "http://issuer.example/keys"], {}, "jwt_jwks_url: must use https"),
        (JWT, {"jwt_secret": "short"}, "jwt_secret: must have at least 32 bytes"),
        (JWT, {"jwt_secret": ""}, "jwt_secret: must have at least 32 bytes"),
        (JWT, {"jwt_secret": "x" * 32, "jwt_algorithms": "RS256"}, "jwt_algorithms: RS256 cannot be used"),
        ([*JWT, "--jwt-jwks-url", "https://x", "--jwt-algorithms", "ES256,HS256"], {}, "jwt_algorithms: HS256 cannot"),
        ([*JWT, "--jwt-jwks-url", "https://x", "--jwt-algorithms", "none"], {}, "jwt_algorithms: none cannot"),
        (["--mode", "gateway"], {}, "needs gateway_secret (THREEFOLD_GATEWAY_SECRET)"),
        (["--mode", "gateway"], {"gateway_secret": "short"}, "gateway_secret: must have at least 32 bytes"),
        (["--mode", "gateway", "--gateway-networks", "all"], {"gateway_secret": "x" * 32}, "gateway_networks: 'all'"),
        (["--max-read-level", "user"], {}, "max_read_level: mode 'dev' verifies no user"),
        ([], {"max_read_level": "store"}, "should be 'session', 'agent' or 'user'"),
    ],
)
def test_invalid_setting_is_a_usage_error(
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    settings: dict[str, str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in settings.items():
        monkeypatch.setenv(f"THREEFOLD_{name.upper()}", value)
    refused = run("serve", *arguments)
    assert refused.code == 2
    assert message in refused.err
    assert refused.err.count("\n") == 1


def test_tracing_without_its_extra_is_refused(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def not_there(package: str) -> bool:
        return not package.startswith("opentelemetry.")

    monkeypatch.setattr("threefold_server.settings.installed", not_there)
    refused = run("serve", "--otel")
    assert (refused.code, "install threefold-server[otel]" in refused.err) == (2, True)


@pytest.mark.parametrize(
    ("module", "flag", "value", "extra"),
    [
        ("psycopg", "--database-url", "postgresql://x:y@127.0.0.1:9/z", "postgres"),
        ("pgvector.psycopg", "--database-url", "postgresql://x:y@127.0.0.1:9/z", "postgres"),
        ("openai", "--model", "gpt-5-mini", "openai"),
        ("openai", "--embedder", "openai:text-embedding-3-small", "openai"),
    ],
)
def test_missing_package_is_one_line_with_its_extra(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, flag: str, value: str, extra: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, module, None)
    refused = run("serve", flag, value)
    assert (refused.code, refused.err.count("\n")) == (1, 1)
    assert f"; install threefold-server[{extra}]" in refused.err


def test_data_and_database_url_together_are_refused(run: Run, tmp_path: Path) -> None:
    assert run("serve", "--data", tmp_path, "--database-url", "postgresql://x/y").code == 2


def test_secret_in_an_invalid_setting_is_not_shown(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THREEFOLD_DATABASE_URL", "mysql://me:hush@host/x")
    refused = run("serve")
    assert refused.code == 2
    assert "hush" not in refused.err


def test_port_in_use_is_reported(run: Run, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = run("serve", "--port", port, "--data", tmp_path, "--embedder", "hash")
    assert refused.code == 1
    assert f"port {port}: Address already in use" in refused.err
    assert refused.err.count("\n") == 1


def test_unreachable_database_is_reported(run: Run) -> None:
    refused = run("serve", "--database-url", "postgresql://nobody:hush@127.0.0.1:1/none")
    assert refused.code == 1
    assert "database" in refused.err
    assert "hush" not in refused.err
    assert refused.err.count("\n") == 1


def test_missing_schema_is_reported(run: Run, blank_postgres_url: str) -> None:
    refused = run("serve", "--database-url", blank_postgres_url)
    assert refused.code == 1
    assert "`threefold migrate`" in refused.err
    assert refused.err.count("\n") == 1


def test_superuser_is_refused(run: Run, databases: Databases, postgres_url: str) -> None:
    name = postgres_url.rpartition("/")[2]
    superuser = databases.admin_url.rpartition("/")[0]
    refused = run("serve", "--database-url", f"{superuser}/{name}")
    assert refused.code == 1
    assert "superuser" in refused.err
    assert refused.err.count("\n") == 1


def test_directory_that_cannot_be_created_is_reported(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused = run("serve", "--data", tmp_path / "file" / "memory")
    assert refused.code == 1
    assert "Not a directory" in refused.err


def test_output_has_no_colours_without_a_terminal(tmp_path: Path) -> None:
    command = [THREEFOLD, "keys", "create", "--user", "u", "--agent", "a", "--data", tmp_path]
    done = subprocess.run(command, env=clean_environment(), capture_output=True, check=True)
    assert b"\x1b" not in done.stdout + done.stderr
