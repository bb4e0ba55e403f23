"""Every setting of the service. This is the only place that reads the environment."""

from __future__ import annotations

import os
import re
from functools import cached_property
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Literal, Self
from urllib.parse import quote, urlsplit

from pydantic import Field, SecretStr, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from threefold.contract import CallerLevel
from threefold_server.extras import installed
from threefold_server.text.redaction import Policy

PREFIX = "THREEFOLD_"
MIN_SECRET_BYTES = 32  # as many as the hash of HS256 has
PUBLIC_KEY_ALGORITHMS = frozenset("RS256 RS384 RS512 PS256 PS384 PS512 ES256 ES384 ES512 EdDSA".split())
SECRET_ALGORITHMS = frozenset({"HS256", "HS384", "HS512"})
HOST = re.compile(r"[a-z0-9_-][a-z0-9._-]*|[0-9a-f:.]*:[0-9a-f:.]*")
LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


class Settings(BaseSettings):
    """Settings by argument, else by environment variable (`THREEFOLD_` and the name in capitals), else the default."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid")

    data: Path = Field(default=Path("memory"), description="Directory of the embedded SQLite database.")
    database_url: SecretStr | None = Field(default=None, description="postgresql://... for production.")
    host: str = "127.0.0.1"
    port: int = Field(default=8181, ge=0, le=65535)

    mode: Literal["dev", "keys", "jwt", "gateway"] = Field(default="dev", description="Where identity comes from.")
    allowed_hosts: str | None = Field(
        default=None, description="Names of this service beside loopback; unset: none in mode dev, any in the others."
    )
    allow_user_level: bool = Field(default=False, description="Dev mode: let unverified users read level `user`.")
    allow_admin: bool = Field(default=False, description="Dev mode: let unverified callers administer the store.")
    max_read_level: CallerLevel = Field(default="agent", description="The store's ceiling; no key reaches above it.")
    allow_self: bool = Field(default=False, description="Modes jwt, gateway: a caller without a user is its agent.")
    reads_shared: bool = Field(default=True, description="Callers may read the shared partition.")
    failure_mode: Literal["soft", "strict"] = Field(default="soft", description="Advice to clients.")
    store_name: str = Field(default="default", min_length=1, max_length=128, description="What clients call the store.")
    mcp: bool | None = Field(default=None, description="Serve MCP at /mcp; unset: if [mcp] is installed.")

    jwt_jwks_url: str | None = Field(default=None, description="Where the issuer publishes its keys.")
    jwt_jwks_file: Path | None = Field(default=None, description="A file with the issuer's keys.")
    jwt_jwks_seconds: float = Field(default=300.0, gt=0, description="The issuer's keys are read anew after this.")
    jwt_secret: SecretStr | None = None
    jwt_algorithms: str | None = Field(default=None, description="Unset: RS256,ES256; with a secret, HS256.")
    jwt_issuer: str | None = Field(default=None, min_length=1, description="`iss` of every token.")
    jwt_audience: str | None = Field(default=None, min_length=1, description="This service, in `aud` of every token.")
    jwt_leeway: float = Field(default=30.0, ge=0, le=600, description="Seconds that clocks may differ.")
    jwt_user_claim: str = Field(default="sub", min_length=1, description="The claim that is the user.")
    jwt_agent_claim: str = Field(default="client_id", min_length=1, description="The claim that is the agent.")
    jwt_level_claim: str | None = Field(default=None, description="The claim that is the ceiling; unset: the store's.")
    jwt_share: str | None = Field(default=None, description="claim or claim=value of those that may share.")
    jwt_admin: str | None = Field(default=None, description="claim or claim=value of administrators.")
    gateway_secret: SecretStr | None = None
    gateway_networks: str = Field(default="127.0.0.0/8,::1/128", description="Where the gateway calls from.")
    gateway_secret_header: str = Field(default="x-threefold-gateway-secret", min_length=1)
    gateway_user_header: str = Field(default="x-threefold-user", min_length=1)
    gateway_agent_header: str = Field(default="x-threefold-agent", min_length=1)
    gateway_level_header: str | None = Field(default=None, description="The ceiling; unset: the store's.")
    gateway_share_header: str | None = Field(default=None, description="`true` for those that may share.")
    gateway_admin_header: str | None = Field(default=None, description="`true` for administrators.")

    token_budget: int = Field(default=4096, ge=1, description="Tokens of a recalled block.")
    event_cap: int = Field(default=2000, ge=1, description="Turns a window holds at most.")
    compaction_trigger: int = Field(default=0, ge=0, description="Undigested tokens that start a fold; 0: the budget.")
    compaction_target: int = Field(default=0, ge=0, description="Undigested tokens left by a fold; 0: half of it.")
    rolling_summary: bool = Field(default=True, description="Keep a digest of turns that left the window.")
    top_k: int = Field(default=10, ge=0, description="Memories per recall unless the caller says otherwise.")
    min_score: float = Field(default=0.25, ge=0, le=1, description="Least absolute score of a recalled memory.")
    fact_expiry_days: float | None = Field(default=None, gt=0, description="New facts expire after this; unset: never.")
    turn_retention_days: float | None = Field(default=None, gt=0, description="Turns are erased after this.")
    audit_retention_days: float | None = Field(default=None, gt=0, description="Audit entries are kept this long.")
    thread_retention_days: float | None = Field(
        default=None, gt=0, description="Threads of graphs are erased once nothing was stored in them for this long."
    )

    embedder: str = Field(default="minilm", description="minilm, hash, or openai:<model>.")
    embedder_dimensions: int | None = Field(default=None, ge=1, description="Of an openai embedder we do not know.")
    minilm_model: Path | None = Field(default=None, description="The MiniLM model file; the packaged one otherwise.")
    model: str | None = Field(
        default=None, min_length=1, description="Writes digests, draws facts; unset: none is asked."
    )
    prompts: Path | None = Field(
        default=None, description="Directory of a store's own instructions: digest.md, facts.md."
    )
    model_base_url: str | None = Field(default=None, description="An OpenAI-compatible endpoint.")
    model_api_key: SecretStr | None = None
    model_timeout: float = Field(default=60.0, gt=0, description="Seconds one model call may take.")

    model_tokens_per_day: int | None = Field(default=None, ge=1, description="Tokens the store's background may use.")
    model_tokens_per_user_day: int | None = Field(default=None, ge=1, description="Tokens one user's may use.")
    redact: Policy = Field(default="derived", description="Secrets: off, derived (kept out of memory), all (of turns).")
    extract_facts: bool | None = Field(default=None, description="Draw facts; unset: if a model is set, with [mem0].")

    consolidate: bool = Field(default=True, description="`serve` also does the background work.")
    consolidators: int = Field(default=2, ge=1, description="Sessions worked on at once, per process.")
    idle_seconds: float = Field(default=300.0, gt=0, description="A session without writes for this long is idle.")
    tier_deadline: float = Field(default=0.5, gt=0, description="Seconds a tier may take before it is degraded.")
    max_body_bytes: int = Field(default=32 * 2**20, ge=1024)
    header_timeout: float = Field(default=10.0, gt=0, description="Seconds for a request's headers (default 10).")
    body_timeout: float = Field(default=120.0, gt=0, description="Seconds for a request's whole body (default 120).")
    max_connections: int = Field(default=800, ge=1, description="Open connections per process (default 800).")
    user_requests_per_minute: int | None = Field(default=None, ge=1, description="Of one user; unset: no limit.")
    key_requests_per_minute: int | None = Field(default=None, ge=1, description="By one key; unset: no limit.")
    max_turns_per_user: int | None = Field(default=None, ge=1, description="Unset: no quota.")
    max_facts_per_user: int | None = Field(default=None, ge=1, description="Unset: no quota.")
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    otel: bool = Field(default=False, description="Export OpenTelemetry spans; needs the [otel] extra.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not 0 < self.target < self.trigger <= self.token_budget:
            raise ValueError(
                "compaction marks: need 0 < compaction_target < compaction_trigger <= token_budget, "
                f"got {self.target}, {self.trigger}, {self.token_budget}"
            )
        if self.mode == "dev" and self.host not in LOOPBACK:
            raise ValueError(
                f"host: mode 'dev' trusts its callers and binds to loopback only, not {self.host!r}; use mode 'keys'"
            )
        if wrong := next((name for name in self.hosts if not HOST.fullmatch(name)), None):
            raise ValueError(f"allowed_hosts: {wrong!r} is no host name; give names or addresses, without port")
        if self.allow_user_level and self.max_read_level == "session":
            raise ValueError("allow_user_level: contradicts max_read_level 'session'; leave one of them out")
        if self.prompts and not self.prompts.is_dir():
            raise ValueError(f"prompts: {str(self.prompts)!r} is no directory")
        if self.mcp and not installed("mcp"):
            raise ValueError("mcp: needs MCP's Python SDK; install threefold-server[mcp]")
        if self.extract_facts and self.model is None:
            raise ValueError("extract_facts: needs a model to draw them; set `model`")
        if self.extract_facts and not installed("mem0"):
            raise ValueError("extract_facts: needs Mem0's prompts; install threefold-server[mem0]")
        if self.otel and not installed("opentelemetry.exporter.otlp.proto.http"):
            raise ValueError("otel: needs OpenTelemetry's exporter; install threefold-server[otel]")
        return self

    def check_servable(self) -> None:
        """Refuse to serve what commands on the store may well be run with."""
        if self.mode == "dev" and self.max_read_level == "user" and not self.allow_user_level:
            raise ValueError(
                "max_read_level: mode 'dev' verifies no user, so it reads level 'user' only with allow_user_level "
                "(`--allow-user-level`); use that, or another mode"
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
            raise ValueError("mode: 'jwt' needs jwt_issuer and jwt_audience, or tokens made for others would do")
        if self.jwt_jwks_url is not None and not _is_safe_url(self.jwt_jwks_url):
            raise ValueError("jwt_jwks_url: must start with https://, as whoever is between could send keys of its own")
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
        """True on the embedded database, which migrates itself at start."""
        return self.url.startswith("sqlite")


def _check_secret(name: str, secret: SecretStr | None) -> None:
    if secret is not None and len(secret.get_secret_value().encode()) < MIN_SECRET_BYTES:
        raise ValueError(f"{name}: must be {MIN_SECRET_BYTES} bytes at least; make one with `openssl rand -base64 32`")


def _is_safe_url(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in LOOPBACK)


def export_environment(settings: Settings) -> None:
    """Hand settings to worker processes, which read them from the environment."""
    for name in settings.model_fields_set:
        value = getattr(settings, name)
        if value is not None:
            text = value.get_secret_value() if isinstance(value, SecretStr) else str(value)
            os.environ[PREFIX + name.upper()] = text


def sqlite_url(directory: Path) -> str:
    """The URL of the embedded database in a data directory."""
    return "sqlite:///" + quote(str(directory / "threefold.db"), safe=" +/")  # as SQLAlchemy writes it
