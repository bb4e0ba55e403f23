"""Lets ADK's commands take `threefold://` addresses for the agents beside this file."""

from threefold_adk import register

register()
