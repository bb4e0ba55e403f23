"""Which modules may import which, and how long a module may be."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

PACKAGES = Path(__file__).parents[1] / "packages"
MAX_LINES = 500

MODULES = {
    path.relative_to(source).as_posix(): path
    for source in sorted(PACKAGES.glob("*/src"))
    for path in sorted(source.rglob("*.py"))
}
CORE = {name for name in MODULES if name.startswith("threefold/")}
SERVER = {name for name in MODULES if name.startswith("threefold_server/")}
PLUGINS = MODULES.keys() - CORE - SERVER

# Libraries and the only places that may import them; a name that ends in a slash is a folder.
ONLY_IN = {
    "alembic": ("threefold_server/storage/",),
    "fastapi": ("threefold_server/app.py", "threefold_server/http/"),
    "jwt": ("threefold_server/http/jwks.py", "threefold_server/http/jwt_identity.py"),
    "mcp": ("threefold_server/mcp/", "threefold_server/http/mcp.py"),
    "pgvector": ("threefold_server/storage/",),
    "psycopg": ("threefold_server/storage/",),
    "pydantic_settings": ("threefold_server/settings.py",),
    "sqlalchemy": ("threefold_server/storage/",),
    "sqlite3": ("threefold_server/storage/",),
    "starlette": ("threefold_server/app.py", "threefold_server/http/"),
}
# Commands on a store, background work, key identity and administrators. `forget` checks what agents hold for all users.
CROSSES_OWNERS = {
    *("administer.py", "app.py", "doctor.py", "forget.py", "http/key_identity.py", "http/probes.py"),
    "spending.py",
    *("cli/keys.py", "cli/store.py", "cli/upkeep.py"),
    *("consolidation/rebuild.py", "consolidation/upkeep.py", "consolidation/worker.py"),
    *("storage/migrate.py", "storage/purge.py", "storage/statistics.py", "storage/transfer.py"),
}
READS_THE_ENVIRONMENT = {"threefold/client.py", "threefold_server/settings.py"}

# Parts of the service and what they must not import; the outer parts use them, not the reverse.
OUTER = ("threefold_server.app", "threefold_server.cli", "threefold_server.http", "threefold_server.local")
PURE = (*OUTER, "threefold_server.storage", "threefold_server.models", "threefold_server.consolidation")
FORBIDDEN = {
    "threefold_server/access.py": PURE,
    "threefold_server/assemble.py": PURE,
    "threefold_server/ranking.py": PURE,
    "threefold_server/text.py": PURE,
    "threefold_server/consolidation/": OUTER,
    "threefold_server/models/": (*OUTER, "threefold_server.storage", "threefold_server.consolidation"),
    "threefold_server/storage/": (*OUTER, "threefold_server.consolidation"),
}


def imports(name: str, source: str) -> Iterator[str]:
    """Yield every module that a module imports; `from a import b` counts as both `a` and `a.b`."""
    package = name.split("/")[:-1]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def within(module: str, *packages: str) -> bool:
    """Return True if a module is one of the packages or inside one."""
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def matches(name: str, *places: str) -> bool:
    """Return True if a file is one of the places or inside one."""
    return any(name == place or (place.endswith("/") and name.startswith(place)) for place in places)


def imported_by(name: str) -> set[str]:
    """Return what one of our modules imports."""
    return set(imports(name, MODULES[name].read_text()))


def test_imports_are_found_in_every_form() -> None:
    source = "import a.b\ndef f():\n    from c import d\nfrom . import e\nfrom ..g import h\n"
    assert set(imports("top/sub/module.py", source)) == {
        *("a.b", "c", "c.d"),
        *("top.sub", "top.sub.e", "top.g", "top.g.h"),
    }


def root(module: str) -> str:
    """Return the top-level package of a module."""
    return module.partition(".")[0]


def offences(names: Iterable[str], offending: Callable[[str], set[str]]) -> dict[str, set[str]]:
    """Return the offences of each module that has any."""
    return {name: found for name in names if (found := offending(name))}


def test_core_imports_only_pydantic_and_httpx() -> None:
    allowed = sys.stdlib_module_names | {"threefold", "pydantic", "pydantic_core", "httpx"}
    assert offences(CORE, lambda name: {root(module) for module in imported_by(name)} - allowed) == {}


def test_plugins_import_neither_the_server_nor_each_other() -> None:
    def strangers(name: str) -> set[str]:
        ours = {root(module) for module in imported_by(name) if module.startswith("threefold")}
        return ours - {"threefold", name.partition("/")[0]}

    assert offences(PLUGINS, strangers) == {}


def test_libraries_are_imported_only_in_their_places() -> None:
    def misplaced(name: str) -> set[str]:
        libraries = {root(module) for module in imported_by(name)} & ONLY_IN.keys()
        return {library for library in libraries if not matches(name, *ONLY_IN[library])}

    assert offences(MODULES, misplaced) == {}


def test_imports_point_inwards() -> None:
    def outward(name: str) -> set[str]:
        forbidden = [module for place, modules in FORBIDDEN.items() if matches(name, place) for module in modules]
        return {module for module in imported_by(name) if within(module, *forbidden)}

    assert offences(SERVER, outward) == {}


def test_transactions_across_owners_are_listed() -> None:
    """Only these modules open transactions in the scope "system", in which row-level security shows all rows."""

    def opens(name: str) -> bool:
        calls = [node for node in ast.walk(ast.parse(MODULES[name].read_text())) if isinstance(node, ast.Call)]
        scopes = [ast.unparse(call.args[0]) for call in calls if isinstance(call.func, ast.Attribute) and call.args]
        return "'system'" in scopes

    assert {name for name in SERVER if opens(name)} == {f"threefold_server/{name}" for name in CROSSES_OWNERS}


def test_environment_is_read_only_in_listed_modules() -> None:
    def reads(name: str) -> set[str]:
        nodes = ast.walk(ast.parse(MODULES[name].read_text()))
        attributes = {ast.unparse(node) for node in nodes if isinstance(node, ast.Attribute)}
        return {"os.environ", "os.environb", "os.getenv"} & (attributes | imported_by(name))

    assert offences(MODULES.keys() - READS_THE_ENVIRONMENT, reads) == {}


def test_modules_stay_small() -> None:
    def lines(name: str) -> int:
        return len(MODULES[name].read_text().splitlines())

    assert {name: lines(name) for name in MODULES if lines(name) > MAX_LINES} == {}


def test_every_rule_applies_to_an_existing_module() -> None:
    assert CORE
    assert SERVER
    places = [*FORBIDDEN, *(place for places in ONLY_IN.values() for place in places), *READS_THE_ENVIRONMENT]
    assert [place for place in places if not any(matches(name, place) for name in MODULES)] == []
