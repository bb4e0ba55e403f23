"""`python -m threefold_server.cli`: the command line without the script that is installed for it."""

from __future__ import annotations

from threefold_server.cli import main

main()
