"""Every setting of the service. No other module of the service reads environment variables."""

from __future__ import annotations

import os
import re
from functools import cached_property
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import quote, urlsplit

from pydantic import BeforeValidator, Field, SecretStr, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from threefold.contract import CallerLevel
from threefold.contract.paths import AGENT_HEADER, USER_HEADER
from threefold_server.extras import installed
from threefold_server.text.redaction import Policy

PREFIX = "THREEFOLD_"
MIN_SECRET_BYTES = 32  # the length of the hash of HS256
PUBLIC_KEY_ALGORITHMS = frozenset("RS256 RS384 RS512 PS256 PS384 PS512 ES256 ES384 ES512 EdDSA".split())
SECRET_ALGORITHMS = frozenset({"HS256", "HS384", "HS512"})
HOST = re.compile(r"[a-z0-9_-][a-z0-9._-]*|[0-9a-f:.]*:[0-9a-f:.]*")
DATABASE_THREADS = 4
"""Two cores and 2: on two cores, more threads only competed for the interpreter lock."""
BACKGROUND_THREADS = 2
LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


Consolidate = Literal["process", "thread", "off"]


def _off_if_false(value: object) -> object:
    return "off" if value is False else value


class Settings(BaseSettings):
    """The settings of one service.

    A value is taken from the argument, else from the environment variable (`THREEFOLD_` and the name in capitals), else
    from the default. The descriptions are the help of `threefold serve`, which adds the default and the variable.
    """

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid")

    data: Path = Field(default=Path("memory"), description="Directory of the embedded SQLite database.")
    database_url: SecretStr | None = Field(
        default=None, description="URL of a Postgres database (postgresql://...), in place of `data`."
    )
    host: str = Field(default="127.0.0.1", description="Address to listen on; mode dev allows loopback only.")
    port: int = Field(default=8181, ge=0, le=65535, description="TCP port to listen on; 0: any free port.")

    mode: Literal["dev", "keys", "jwt", "gateway"] = Field(
        default="dev", description="How the service learns who is calling."
    )
    allowed_hosts: str | None = Field(
        default=None,
        description="Comma-separated host names of this service beside loopback; unset: none in mode dev, else any.",
    )
    allow_user_level: bool = Field(default=False, description="Mode dev: let unverified callers read level `user`.")
    allow_admin: bool = Field(default=False, description="Mode dev: let unverified callers administer the store.")
    max_read_level: CallerLevel = Field(default="agent", description="Highest level that any caller may read.")
    allow_self: bool = Field(
        default=False, description="Modes jwt, gateway: accept callers without a user as their agent acting for itself."
    )
    reads_shared: bool = Field(default=True, description="Let callers read shared facts.")
    failure_mode: Literal["soft", "strict"] = Field(
        default="soft", description="What clients do in an outage: answer without memory, or raise."
    )
    store_name: str = Field(
        default="default", min_length=1, max_length=128, description="Name of the store that clients show."
    )
    mcp: bool | None = Field(default=None, description="Serve MCP at /mcp; unset: if the [mcp] extra is installed.")

    jwt_jwks_url: str | None = Field(default=None, description="URL of the issuer's public keys (JWKS).")
    jwt_jwks_file: Path | None = Field(default=None, description="File with the issuer's public keys (JWKS).")
    jwt_jwks_seconds: float = Field(default=300.0, gt=0, description="Seconds until the issuer's keys are read again.")
    jwt_secret: SecretStr | None = Field(default=None, description="Secret that signs tokens, in place of public keys.")
    jwt_algorithms: str | None = Field(
        default=None, description="Accepted algorithms, comma-separated; unset: RS256,ES256, or HS256 with jwt_secret."
    )
    jwt_issuer: str | None = Field(
        default=None, min_length=1, description="Value that the claim `iss` of every token must have."
    )
    jwt_audience: str | None = Field(
        default=None,
        min_length=1,
        description="Name of this service, which the claim `aud` of every token must contain.",
    )
    jwt_leeway: float = Field(
        default=30.0, ge=0, le=600, description="Seconds that the clocks of issuer and service may differ."
    )
    jwt_user_claim: str = Field(default="sub", min_length=1, description="Claim with the user.")
    jwt_agent_claim: str = Field(default="client_id", min_length=1, description="Claim with the agent.")
    jwt_level_claim: str | None = Field(
        default=None, description="Claim with the caller's ceiling; unset: max_read_level."
    )
    jwt_share: str | None = Field(
        default=None, description="Callers that may save shared facts: a claim that is true, or claim=value."
    )
    jwt_admin: str | None = Field(default=None, description="Administrators: a claim that is true, or claim=value.")
    gateway_secret: SecretStr | None = Field(default=None, description="Secret that the gateway sends in a header.")
    gateway_networks: str = Field(
        default="127.0.0.0/8,::1/128", description="Networks that the gateway calls from, comma-separated."
    )
    gateway_secret_header: str = Field(
        default="x-threefold-gateway-secret", min_length=1, description="Header with the gateway's secret."
    )
    gateway_user_header: str = Field(default=USER_HEADER, min_length=1, description="Header with the user.")
    gateway_agent_header: str = Field(default=AGENT_HEADER, min_length=1, description="Header with the agent.")
    gateway_level_header: str | None = Field(
        default=None, description="Header with the caller's ceiling; unset: max_read_level."
    )
    gateway_share_header: str | None = Field(
        default=None, description="Header that is `true` for callers that may save shared facts."
    )
    gateway_admin_header: str | None = Field(default=None, description="Header that is `true` for administrators.")

    token_budget: int = Field(default=4096, ge=1, description="Most tokens of a recalled block.")
    event_cap: int = Field(default=2000, ge=1, description="Most turns of a window.")
    compaction_trigger: int = Field(
        default=0, ge=0, description="Undigested tokens above which a fold starts; 0: token_budget."
    )
    compaction_target: int = Field(
        default=0, ge=0, description="Undigested tokens that a fold leaves; 0: half of token_budget."
    )
    rolling_summary: bool = Field(default=True, description="Keep a digest of the turns before the window.")
    top_k: int = Field(default=10, ge=0, description="Most memories of a recall that names no number.")
    min_score: float = Field(
        default=0.25, ge=0, le=1, description="Lowest score, cosine or coverage, of a recalled memory (0 to 1)."
    )
    fact_expiry_days: float | None = Field(
        default=None, gt=0, description="Days until a new fact expires; unset: never."
    )
    turn_retention_days: float | None = Field(
        default=None, gt=0, description="Days until a turn is erased; unset: never."
    )
    audit_retention_days: float | None = Field(
        default=None, gt=0, description="Days until an audit entry is deleted; unset: never."
    )
    thread_retention_days: float | None = Field(
        default=None, gt=0, description="Days without a write until a graph's thread is erased; unset: never."
    )

    embedder: str = Field(
        default="minilm", description="Model that embeds texts: minilm (built in), hash (no model) or openai:<model>."
    )
    embedder_dimensions: int | None = Field(
        default=None, ge=1, description="Length of the vectors of an embedder that is not one of OpenAI's."
    )
    minilm_model: Path | None = Field(
        default=None, description="Path of the MiniLM model file; unset: the packaged file."
    )
    model: str | None = Field(
        default=None, min_length=1, description="Chat model that writes digests and extracts facts; unset: no model."
    )
    prompts: Path | None = Field(
        default=None, description="Directory of instructions for the model (digest.md, facts.md); unset: built in."
    )
    model_base_url: str | None = Field(default=None, description="URL of an OpenAI-compatible endpoint; unset: OpenAI.")
    model_api_key: SecretStr | None = Field(default=None, description="API key of the endpoint.")
    model_timeout: float = Field(default=60.0, gt=0, description="Seconds that one model call may take.")

    model_tokens_per_day: int | None = Field(
        default=None, ge=1, description="Tokens that background work may use per day; unset: no limit."
    )
    model_tokens_per_user_day: int | None = Field(
        default=None, ge=1, description="Tokens that one user's background work may use per day; unset: no limit."
    )
    redact: Policy = Field(
        default="derived",
        description="Remove secrets: off, derived (from what memory makes of turns), all (from turns too).",
    )
    extract_facts: bool | None = Field(
        default=None,
        description="Extract facts from turns; unset: if a model is set and the [mem0] extra is installed.",
    )

    database_threads: int = Field(
        default=DATABASE_THREADS,
        ge=2,
        description="Threads for reads, and as many for writes; on Postgres each has a connection.",
    )
    background_threads: int = Field(
        default=BACKGROUND_THREADS, ge=1, description="Database threads of background work, each with a connection."
    )
    index_cache_mb: int = Field(
        default=256,
        ge=0,
        description="Megabytes of memory for the search indexes of the users served last; 0: search in the database.",
    )
    consolidate: Annotated[Consolidate | None, BeforeValidator(_off_if_false)] = Field(
        default=None,
        description="Where background work runs: process (one that each process of `serve` starts), thread (in the "
        "serving process) or off; unset: process in `serve`, thread in a program that embeds the service.",
    )
    consolidators: int = Field(
        default=2, ge=1, description="Sessions that background work handles at once, per process and kind of work."
    )
    idle_seconds: float = Field(
        default=300.0, gt=0, description="Seconds without a write after which a session is idle."
    )
    tier_deadline: float = Field(
        default=0.5, gt=0, description="Seconds that a tier of a recall may take before it is left out."
    )
    max_body_bytes: int = Field(default=32 * 2**20, ge=1024, description="Largest request body in bytes.")
    header_timeout: float = Field(
        default=10.0, gt=0, description="Seconds for the headers of a request, and for a pause within its body."
    )
    body_timeout: float = Field(default=120.0, gt=0, description="Seconds for the whole body of a request.")
    max_connections: int = Field(default=800, ge=1, description="Most open connections per process.")
    user_requests_per_minute: int | None = Field(
        default=None, ge=1, description="Most requests of one user per minute; unset: no limit."
    )
    key_requests_per_minute: int | None = Field(
        default=None, ge=1, description="Most requests with one key per minute; unset: no limit."
    )
    max_turns_per_user: int | None = Field(default=None, ge=1, description="Most turns of one user; unset: no limit.")
    max_facts_per_user: int | None = Field(
        default=None, ge=1, description="Most facts of one user, superseded versions included; unset: no limit."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Lowest level that is logged."
    )
    otel: bool = Field(
        default=False, description="Export OpenTelemetry spans by OTLP over HTTP; needs the [otel] extra."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not 0 < self.target < self.trigger <= self.token_budget:
            raise ValueError(
                "compaction marks: need 0 < compaction_target < compaction_trigger <= token_budget, "
                f"got {self.target}, {self.trigger}, {self.token_budget}"
            )
        if self.mode == "dev" and self.host not in LOOPBACK:
            raise ValueError(
                f"host: mode 'dev' trusts its callers and listens on loopback only, "
                f"not on {self.host!r}; use mode 'keys'"
            )
        if wrong := next((name for name in self.hosts if not HOST.fullmatch(name)), None):
            raise ValueError(f"allowed_hosts: {wrong!r} is not a host name; give names or addresses without a port")
        if self.allow_user_level and self.max_read_level == "session":
            raise ValueError("allow_user_level: contradicts max_read_level 'session'; leave one of them out")
        if self.prompts and not self.prompts.is_dir():
            raise ValueError(f"prompts: {str(self.prompts)!r} is not a directory")
        if self.mcp and not installed("mcp"):
            raise ValueError("mcp: needs MCP's Python SDK; install threefold-server[mcp]")
        if self.extract_facts and self.model is None:
            raise ValueError("extract_facts: needs a model that extracts them; set `model`")
        if self.extract_facts and not installed("mem0"):
            raise ValueError("extract_facts: needs Mem0's prompts; install threefold-server[mem0]")
        if self.otel and not installed("opentelemetry.exporter.otlp.proto.http"):
            raise ValueError("otel: needs OpenTelemetry's exporter; install threefold-server[otel]")
        return self

    def check_servable(self) -> None:
        """Raise ValueError for settings that commands on the store accept and a service must not run with."""
        if self.mode == "dev" and self.max_read_level == "user" and not self.allow_user_level:
            raise ValueError(
                "max_read_level: mode 'dev' verifies no user, so level 'user' also needs allow_user_level "
                "(`--allow-user-level`); set it, or use another mode"
            )

    @model_validator(mode="after")
    def _check_jwt(self) -> Self:
        if self.mode != "jwt":
            return self
        if not installed("jwt"):
            raise ValueError("mode: 'jwt' needs PyJWT; install threefold-server[jwt]")
        if sum(key is not None for key in (self.jwt_jwks_url, self.jwt_jwks_file, self.jwt_secret)) != 1:
            raise ValueError("mode: 'jwt' needs exactly one of jwt_jwks_url, jwt_jwks_file, jwt_secret")
        if self.jwt_issuer is None or self.jwt_audience is None:
            raise ValueError(
                "mode: 'jwt' needs jwt_issuer and jwt_audience; without them, tokens issued for other services "
                "would be accepted"
            )
        if self.jwt_jwks_url is not None and not _is_safe_url(self.jwt_jwks_url):
            raise ValueError("jwt_jwks_url: must use https; over http, anyone on the path could substitute the keys")
        if self.jwt_jwks_file is not None and not self.jwt_jwks_file.is_file():
            raise ValueError(f"jwt_jwks_file: no file at {self.jwt_jwks_file}")
        if unknown := set(self.algorithms) - (PUBLIC_KEY_ALGORITHMS if self.jwt_secret is None else SECRET_ALGORITHMS):
            raise ValueError(f"jwt_algorithms: {', '.join(sorted(unknown))} cannot be used with these keys")
        _check_secret("jwt_secret", self.jwt_secret)
        return self

    @model_validator(mode="after")
    def _check_gateway(self) -> Self:
        if self.mode != "gateway":
            return self
        if self.gateway_secret is None:
            raise ValueError("mode: 'gateway' needs gateway_secret (THREEFOLD_GATEWAY_SECRET), which the proxy sends")
        _check_secret("gateway_secret", self.gateway_secret)
        try:
            _ = self.networks
        except ValueError as error:
            raise ValueError(f"gateway_networks: {error}") from error
        return self

    @cached_property
    def hosts(self) -> frozenset[str]:
        return frozenset(name.strip().lower() for name in (self.allowed_hosts or "").split(",") if name.strip())

    @property
    def algorithms(self) -> list[str]:
        default = "RS256,ES256" if self.jwt_secret is None else "HS256"
        return [name.strip() for name in (self.jwt_algorithms or default).split(",")]

    @cached_property
    def networks(self) -> list[IPv4Network | IPv6Network]:
        return [ip_network(name.strip()) for name in self.gateway_networks.split(",")]

    @property
    def trigger(self) -> int:
        return self.compaction_trigger or self.token_budget

    @property
    def target(self) -> int:
        return self.compaction_target or self.token_budget // 2

    @property
    def model_key(self) -> str:
        return self.model_api_key.get_secret_value() if self.model_api_key else ""

    @property
    def extracts_facts(self) -> bool:
        return self.model is not None and (installed("mem0") if self.extract_facts is None else self.extract_facts)

    @property
    def serves_mcp(self) -> bool:
        return installed("mcp") if self.mcp is None else self.mcp

    @property
    def url(self) -> str:
        return self.database_url.get_secret_value() if self.database_url else sqlite_url(self.data)

    @property
    def embedded(self) -> bool:
        """Whether the database is SQLite, which the service migrates at start."""
        return self.url.startswith("sqlite")


def _check_secret(name: str, secret: SecretStr | None) -> None:
    if secret is not None and len(secret.get_secret_value().encode()) < MIN_SECRET_BYTES:
        raise ValueError(
            f"{name}: must have at least {MIN_SECRET_BYTES} bytes; make one with `openssl rand -base64 32`"
        )


def _is_safe_url(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in LOOPBACK)


def export_environment(settings: Settings) -> None:
    """Set environment variables to the settings, for worker processes that read them."""
    os.environ.update(_variables(settings))


def environment_of(settings: Settings) -> dict[str, str]:
    """Return the environment of a process that is to have exactly these settings."""
    names = {PREFIX + name.upper() for name in Settings.model_fields}
    return {name: value for name, value in os.environ.items() if name not in names} | _variables(settings)


def _variables(settings: Settings) -> dict[str, str]:
    values = {name: getattr(settings, name) for name in settings.model_fields_set}
    return {
        PREFIX + name.upper(): value.get_secret_value() if isinstance(value, SecretStr) else str(value)
        for name, value in values.items()
        if value is not None
    }


def sqlite_url(directory: Path) -> str:
    """Return the URL of the embedded database in a data directory."""
    return "sqlite:///" + quote(str(directory / "threefold.db"), safe=" +/")  # as SQLAlchemy writes it
