"""All plugins of the suite."""

from conformance import adk_plugin, crewai_plugin, langgraph_plugin, pydantic_ai_plugin
from conformance.adapter import Plugin

PLUGINS: list[Plugin] = [
    pydantic_ai_plugin.PLUGIN,
    langgraph_plugin.PLUGIN,
    adk_plugin.PLUGIN,
    crewai_plugin.PLUGIN,
]
