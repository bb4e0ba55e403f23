"""Plugin of Threefold for CrewAI: the memory of a crew, an agent or a flow."""

from threefold_crewai.abort import MemoryAborted
from threefold_crewai.memory import ThreefoldMemory
from threefold_crewai.runs import acting_as

__all__ = ["MemoryAborted", "ThreefoldMemory", "acting_as"]
