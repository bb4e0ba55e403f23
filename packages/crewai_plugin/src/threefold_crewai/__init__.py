"""Threefold as the native memory of CrewAI."""

from threefold_crewai.abort import MemoryAborted
from threefold_crewai.memory import ThreefoldMemory
from threefold_crewai.runs import acting_as

__all__ = ["MemoryAborted", "ThreefoldMemory", "acting_as"]
