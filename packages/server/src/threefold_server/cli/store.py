"""Commands that open a store itself, without a service: their settings, and how the store is opened."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any, cast

import anyio
import typer
from pydantic import SecretStr, ValidationError
from pydantic.fields import FieldInfo

from threefold.checks import problem
from threefold.errors import ThreefoldError
from threefold_server.app import open_service
from threefold_server.cli.commands import add_command, given, option
from threefold_server.cli.output import Failed, UsageError
from threefold_server.service import Service
from threefold_server.settings import PREFIX, Settings, sqlite_url
from threefold_server.storage.engine import migrate
from threefold_server.storage.engine.database import Database
from threefold_server.text.packaged import InstallationError

STORE = ("data", "database_url")
EMBEDDER = ("embedder", "embedder_dimensions", "minilm_model")
MODELS = (*STORE, *EMBEDDER, "model", "prompts", "model_base_url", "model_timeout", "extract_facts")
SECRETS = {"model_api_key", "jwt_secret", "gateway_secret"}  # no flags: other users of the machine can see arguments
ALL = tuple(name for name in Settings.model_fields if name not in SECRETS)

KNOWN_URLS = ("postgresql://", "postgresql+psycopg://", "sqlite:///")

Function = Callable[..., None]


def store_verb(
    app: typer.Typer, *examples: str, flags: Sequence[str] = STORE, name: str | None = None
) -> Callable[[Function], Function]:
    """Register a function that takes settings as a command.

    Args:
        app: The group that gets the command.
        examples: Command lines for the end of the help text.
        flags: The settings that become options of the command, beside those of the function.
        name: The name of the command; None for the name of the function.
    """

    def register(function: Function) -> Function:
        def run(**values: Any) -> None:
            settings = load_settings(**{flag: values.pop(flag) for flag in flags})
            function(settings, **values)

        add_command(app, function, [_flag(flag) for flag in flags], run, examples, name)
        return function

    return register


def load_settings(**flags: Any) -> Settings:
    """Return the settings of the given flags; missing ones come from the environment.

    Raises:
        UsageError: A value is invalid, or the flags name two stores.
    """
    data, url = flags.get("data"), flags.get("database_url")
    if data is not None and url is not None:
        raise UsageError("--data and --database-url name two stores; give only one")
    if data is not None:
        flags["database_url"] = sqlite_url(data)  # so that the flag wins over THREEFOLD_DATABASE_URL in every process
    try:
        settings = Settings(**given(**flags))
    except ValidationError as error:
        raise UsageError(_problems(error)) from error
    if not settings.url.startswith(KNOWN_URLS):
        raise UsageError(f"{_label('database_url')}must start with postgresql:// or sqlite:///")
    return settings


def check_exists(settings: Settings) -> None:
    """Raise UsageError if there is no store. Creating one would hide a mistyped name."""
    with explained():
        path = Database(settings.url).url.database
    if settings.embedded and not Path(path or "").exists():
        raise UsageError(f"no store at {path}; give its --data or --database-url")


@contextmanager
def open_database(settings: Settings) -> Generator[Database]:
    """Open the database only. An embedded one is migrated to the current schema first."""
    with ExitStack() as stack:
        with explained():
            if settings.embedded:
                migrate.upgrade(settings.url)
            database = Database(settings.url)
            stack.callback(database.close)
            database.read_sync("system", migrate.check_current)
        yield database


def with_service(settings: Settings, work: Callable[[Service], Awaitable[None]], *, claim: bool = True) -> None:
    """Open the service without HTTP and run `work` with it.

    Args:
        settings: The settings of the service.
        work: What to run.
        claim: Make the embedder of the settings the store's own; fail if the store has another one.
    """

    async def run() -> None:
        async with AsyncExitStack() as stack:
            with explained():
                service = await stack.enter_async_context(open_service(settings, claim=claim))
            await work(service)

    try:
        anyio.run(run)
    except ExceptionGroup as group:
        if isinstance(error := _lone(group), ThreefoldError):
            raise error from group
        raise


@contextmanager
def explained() -> Generator[None]:
    """Convert the errors of opening a store into errors that are printed in one line."""
    try:
        yield
    except ValueError as error:
        raise UsageError(str(error)) from error
    except ImportError as error:
        raise Failed(f"{error}; install threefold-server[postgres]") from error
    except (InstallationError, OSError, RuntimeError) as error:
        raise Failed(str(error)) from error


def _lone(error: Exception) -> Exception:
    """Return the single error inside groups of errors: a task group wraps even one."""
    return _lone(cast("ExceptionGroup[Exception]", error).exceptions[0]) if isinstance(error, ExceptionGroup) else error


def _flag(name: str) -> inspect.Parameter:
    field = Settings.model_fields[name]
    kind: Any = str if SecretStr in getattr(field.annotation, "__args__", ()) else field.annotation
    return option(name, Annotated[kind | None, typer.Option(help=_help(name, field), show_default=False)])


def _help(name: str, field: FieldInfo) -> str:
    default = "" if field.default is None else f" Default: {field.default}."
    return f"{field.description or ''}{default} Variable: {PREFIX}{name.upper()}.".strip()


def _problems(error: ValidationError) -> str:
    """Return the problem of each invalid setting. Values are not quoted, as they may be secrets."""
    items = error.errors(include_url=False, include_context=False, include_input=False)
    return "; ".join("".join(map(_label, item["loc"])) + problem(item["msg"]) for item in items)


def _label(setting: int | str) -> str:
    name = str(setting)
    return f"--{name.replace('_', '-')} ({PREFIX}{name.upper()}): "
