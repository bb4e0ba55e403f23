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
    *("app.py", "http/key_identity.py", "http/probes.py", "spending.py"),
    *("cli/keys.py", "cli/store.py", "cli/upkeep.py"),
    *("consolidation/rebuild.py", "consolidation/upkeep.py", "consolidation/worker.py"),
    *("operations/admin.py", "operations/doctor.py", "operations/forget.py"),
    *(
        "storage/engine/migrate.py",
        "storage/engine/statistics.py",
        "storage/erasure/purge.py",
        "storage/store/transfer.py",
    ),
}
READS_THE_ENVIRONMENT = {"threefold/client.py", "threefold_server/settings.py"}

# Bottom to top. A module imports its own layer or a lower one; two parts of one layer do not know each other, except
# those of `BESIDE`.
LAYERS = (
    ("clock", "extras", "settings", "telemetry", "text"),
    ("rules",),
    ("models",),
    ("storage",),
    ("service", "spending"),
    ("operations",),
    ("consolidation", "http", "mcp"),
    ("app", "local"),
    ("cli",),
)
BESIDE = {
    ("http", "mcp"): "MCP over HTTP is a route",
    ("local", "app"): "the service in-process is the application without a port",
    ("settings", "extras"): "a setting may need an extra",
    ("settings", "text"): "the policies of redaction",
    ("spending", "service"): "spending is counted in the store",
    ("text", "clock"): "a passage carries the date of its turn",
}
STORAGE_LAYERS = (
    ("engine",),
    ("migrations", "sessions", "threads"),
    ("memories",),
    ("knowledge",),
    ("erasure",),
    ("store",),
)
STORAGE_BESIDE = {
    ("memories", "erasure"): "deleting an item erases it",
    ("memories", "store"): "the vectors of an item need the embedder of the store",
    ("threads", "erasure"): "an erased thread refuses late writers",
}

# What `rules` and `text` may import besides themselves and the contract: no file, no clock, no socket.
PURE_LIBRARIES = {
    *("__future__", "base64", "binascii", "collections", "dataclasses", "datetime", "enum", "functools", "hashlib"),
    *("importlib", "itertools", "json", "logging", "math", "operator", "re", "threading", "typing", "unicodedata"),
    *("uuid", "warnings"),
    *("Stemmer", "detect_secrets", "numpy", "stdnum", "tiktoken", "threefold"),
}
READS_PACKAGED_FILES = "threefold_server/text/packaged.py"


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


def dotted(name: str) -> str:
    """Return the import path of a file."""
    return name.removesuffix(".py").replace("/", ".")


def ours(name: str) -> set[str]:
    """Return the modules of the service that one of its modules imports."""
    existing = {dotted(module).removesuffix(".__init__") for module in SERVER}
    return {module for module in imported_by(name) if module in existing and module != "threefold_server"}


def called(name: str) -> set[str]:
    """Return the plain names that a module calls."""
    calls = [node for node in ast.walk(ast.parse(MODULES[name].read_text())) if isinstance(node, ast.Call)]
    return {call.func.id for call in calls if isinstance(call.func, ast.Name)}


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


def part(module: str, depth: int = 1) -> str:
    """Return the part of the service that a module belongs to: a folder, or a module of the root."""
    parts = module.split(".")
    return parts[depth] if len(parts) > depth else ""


def level(name: str, layers: tuple[tuple[str, ...], ...]) -> int:
    """Return the number of the layer that lists a part, from 0 at the bottom."""
    return next(number for number, parts in enumerate(layers) if name in parts)


def test_every_part_of_the_service_is_in_one_layer() -> None:
    listed = [name for parts in LAYERS for name in parts]
    assert len(listed) == len(set(listed))
    found = {part(dotted(name)) for name in SERVER} - {"", "__init__"}
    assert found == set(listed)


def test_imports_point_to_the_same_layer_or_a_lower_one() -> None:
    def upward(name: str) -> set[str]:
        own = part(dotted(name))
        if own == "__init__":  # exports `local_memory`
            return set()
        others = {part(module) for module in ours(name)} - {own, ""}
        return {other for other in others if not below(other, own)}

    def below(other: str, own: str) -> bool:
        return level(other, LAYERS) < level(own, LAYERS) or (own, other) in BESIDE

    assert offences(SERVER, upward) == {}


def test_imports_within_storage_point_down() -> None:
    def upward(name: str) -> set[str]:
        own = part(dotted(name), 2)
        others = {part(module, 2) for module in ours(name) if part(module) == "storage"} - {own, ""}
        return {other for other in others if not below(other, own)}

    def below(other: str, own: str) -> bool:
        lower = level(other, STORAGE_LAYERS) < level(own, STORAGE_LAYERS)
        return lower or (own, other) in STORAGE_BESIDE

    storage = {name for name in SERVER if name.startswith("threefold_server/storage/") and name.count("/") > 2}
    assert offences(storage, upward) == {}


def test_rules_and_text_are_pure() -> None:
    def impure(name: str) -> set[str]:
        outside = {root(module) for module in imported_by(name)} - PURE_LIBRARIES - {"threefold_server"}
        return outside | ({"open"} & called(name))

    pure = {name for name in SERVER if matches(name, "threefold_server/rules/", "threefold_server/text/")}
    assert offences(pure - {READS_PACKAGED_FILES}, impure) == {}


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
        """Count the lines of a module without its docstrings."""
        source = MODULES[name].read_text()
        strings = [node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Expr)]
        docs = [each for each in strings if isinstance(each, ast.Constant) and isinstance(each.value, str)]
        return len(source.splitlines()) - sum((each.end_lineno or each.lineno) - each.lineno + 1 for each in docs)

    assert {name: lines(name) for name in MODULES if lines(name) > MAX_LINES} == {}


def test_every_rule_applies_to_an_existing_module() -> None:
    assert CORE
    assert SERVER
    places = [*(place for places in ONLY_IN.values() for place in places), *READS_THE_ENVIRONMENT]
    assert [place for place in places if not any(matches(name, place) for name in MODULES)] == []
