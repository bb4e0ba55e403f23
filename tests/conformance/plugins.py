"""Every plugin, in one place."""

from conformance import pydantic_ai_plugin
from conformance.adapter import Plugin

PLUGINS: list[Plugin] = [pydantic_ai_plugin.PLUGIN]
