"""Commands on a store itself, without a service: which store, and how it is opened."""

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
SECRETS = {"model_api_key", "jwt_secret", "gateway_secret"}  # no flags: everybody sees arguments
ALL = tuple(name for name in Settings.model_fields if name not in SECRETS)

KNOWN_URLS = ("postgresql://", "postgresql+psycopg://", "sqlite:///")

Function = Callable[..., None]


def store_verb(
    app: typer.Typer, *examples: str, flags: Sequence[str] = STORE, name: str | None = None
) -> Callable[[Function], Function]:
    """Make a function over settings a command, with a flag for each of the named settings beside its own."""

    def register(function: Function) -> Function:
        def run(**values: Any) -> None:
            settings = load_settings(**{flag: values.pop(flag) for flag in flags})
            function(settings, **values)

        add_command(app, function, [_flag(flag) for flag in flags], run, examples, name)
        return function

    return register


def load_settings(**flags: Any) -> Settings:
    """Settings as the flags say, and the environment where they do not."""
    data, url = flags.get("data"), flags.get("database_url")
    if data is not None and url is not None:
        raise UsageError("--data and --database-url name two stores; give one of them")
    if data is not None:
        flags["database_url"] = sqlite_url(data)  # so that the flag wins over THREEFOLD_DATABASE_URL in every process
    try:
        settings = Settings(**given(**flags))
    except ValidationError as error:
        raise UsageError(_problems(error)) from error
    if not settings.url.startswith(KNOWN_URLS):
        raise UsageError(f"{_named('database_url')}must start with postgresql:// or sqlite:///")
    return settings


def check_exists(settings: Settings) -> None:
    """Refuse to look after a store that is not there: making one would hide a mistyped name."""
    with explained():
        path = Database(settings.url).url.database
    if settings.embedded and not Path(path or "").exists():
        raise UsageError(f"there is no store at {path}; name it by --data or --database-url")


@contextmanager
def open_database(settings: Settings) -> Generator[Database]:
    """The database alone; the embedded one is brought to the current schema."""
    with ExitStack() as stack:
        with explained():
            if settings.embedded:
                migrate.upgrade(settings.url)
            database = Database(settings.url)
            stack.callback(database.close)
            database.read_sync("system", migrate.check_current)
        yield database


def with_service(settings: Settings, work: Callable[[Service], Awaitable[None]], *, claim: bool = True) -> None:
    """Do something with all of the service but HTTP."""

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
    """Turn what keeps a store from opening into errors that are shown in one line."""
    try:
        yield
    except ValueError as error:
        raise UsageError(str(error)) from error
    except ImportError as error:
        raise Failed(f"{error}; install threefold-server[postgres]") from error
    except (InstallationError, OSError, RuntimeError) as error:
        raise Failed(str(error)) from error


def _lone(error: Exception) -> Exception:
    """What a task group was left for; it wraps even a single error."""
    return _lone(cast("ExceptionGroup[Exception]", error).exceptions[0]) if isinstance(error, ExceptionGroup) else error


def _flag(name: str) -> inspect.Parameter:
    field = Settings.model_fields[name]
    kind: Any = str if SecretStr in getattr(field.annotation, "__args__", ()) else field.annotation
    return option(name, Annotated[kind | None, typer.Option(help=_help(name, field), show_default=False)])


def _help(name: str, field: FieldInfo) -> str:
    default = "" if field.default is None else f" Default: {field.default}."
    return f"{field.description or ''}{default} Else {PREFIX}{name.upper()}.".strip()


def _problems(error: ValidationError) -> str:
    """What is wrong with which settings; a value may be a secret, so none is quoted."""
    items = error.errors(include_url=False, include_context=False, include_input=False)
    return "; ".join("".join(map(_named, item["loc"])) + problem(item["msg"]) for item in items)


def _named(setting: int | str) -> str:
    name = str(setting)
    return f"--{name.replace('_', '-')} ({PREFIX}{name.upper()}): "
