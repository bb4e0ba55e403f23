"""What MCP clients send, as text that parsers take."""

from __future__ import annotations

import re

from threefold.contract.common import REPLACEMENT

_HIGH, _LOW = r"u[dD][89abAB][0-9a-fA-F]{2}", r"u[dD][c-fC-F][0-9a-fA-F]{2}"
_HALF = re.compile(f"{_HIGH}|{_LOW}")
_ESCAPE = re.compile(rf"\\(?:{_HIGH}\\{_LOW}|({_HIGH}|{_LOW})|.)", re.DOTALL)


def whole(message: str) -> str:
    """JSON without halves of characters: JavaScript cuts text in the middle of an emoji and escapes what is left. No
    parser here takes that, so that over standard input the call would never be answered."""
    if _HALF.search(message) is None:
        return message
    return _ESCAPE.sub(lambda escape: REPLACEMENT if escape[1] else escape[0], message)
