"""Threefold: one memory for every agent framework."""

from threefold.async_client import AsyncMemoryClient
from threefold.calls import Deadlines
from threefold.client import MemoryClient
from threefold.contract import ForgetReceipt, Memory, RecallResponse, TurnIn, WhoAmI, WriteResponse
from threefold.errors import (
    CircuitOpen,
    Conflict,
    EmbedderMismatch,
    Forbidden,
    InternalError,
    InvalidRequest,
    NotFound,
    QuotaExceeded,
    RateLimited,
    RevisionConflict,
    ServiceError,
    ThreefoldError,
    TooLarge,
    Unauthenticated,
    Unavailable,
    Unreachable,
    WaitTimeout,
)
from threefold.policy import CircuitBreaker, FailureMode, Policy, Stats
from threefold.render import strip_block
from threefold.session import AsyncMemorySession, MemorySession
from threefold.spool import DirectorySpool, MemorySpool
from threefold.tools.definitions import memory_tools, run_tool, run_tool_async, tools_hint

__all__ = [
    "AsyncMemoryClient",
    "AsyncMemorySession",
    "CircuitBreaker",
    "CircuitOpen",
    "Conflict",
    "Deadlines",
    "DirectorySpool",
    "EmbedderMismatch",
    "FailureMode",
    "Forbidden",
    "ForgetReceipt",
    "InternalError",
    "InvalidRequest",
    "Memory",
    "MemoryClient",
    "MemorySession",
    "MemorySpool",
    "NotFound",
    "Policy",
    "QuotaExceeded",
    "RateLimited",
    "RecallResponse",
    "RevisionConflict",
    "ServiceError",
    "Stats",
    "ThreefoldError",
    "TooLarge",
    "TurnIn",
    "Unauthenticated",
    "Unavailable",
    "Unreachable",
    "WaitTimeout",
    "WhoAmI",
    "WriteResponse",
    "memory_tools",
    "run_tool",
    "run_tool_async",
    "strip_block",
    "tools_hint",
]
