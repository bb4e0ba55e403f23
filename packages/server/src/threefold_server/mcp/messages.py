"""Repair of the JSON that MCP clients send."""

from __future__ import annotations

import re

from threefold.contract.common import REPLACEMENT

_HIGH, _LOW = r"u[dD][89abAB][0-9a-fA-F]{2}", r"u[dD][c-fC-F][0-9a-fA-F]{2}"
_HALF = re.compile(f"{_HIGH}|{_LOW}")
_ESCAPE = re.compile(rf"\\(?:{_HIGH}\\{_LOW}|({_HIGH}|{_LOW})|.)", re.DOTALL)


def replace_surrogates(message: str) -> str:
    """Return JSON with each unpaired surrogate escape replaced by U+FFFD.

    JavaScript clients may cut a text in the middle of an emoji and escape the rest. The JSON parser refuses that, and
    over standard input the call would never be answered.
    """
    if _HALF.search(message) is None:
        return message
    return _ESCAPE.sub(lambda escape: REPLACEMENT if escape[1] else escape[0], message)
