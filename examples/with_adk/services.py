"""Register `threefold://` addresses for ADK's commands; ADK loads this file for the agents in this directory."""

from threefold_adk import register

register()
