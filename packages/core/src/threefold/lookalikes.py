"""Find text that a model could read as the fence, however it is written.

`disarm` is the only rule. It looks at each character that looks like a bracket and checks whether the letters and
digits after it spell the name of the fence. A character counts as the letter that it looks like; an HTML entity, a
percent code or a backslash escape counts as the character that it stands for. Only the bracket is replaced; all other
text is unchanged.

The look-alikes come from Unicode's confusables.txt for the ten letters of the name. Small capitals, letters with
strokes, turned letters and digits that stand for letters were added by hand.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from html import unescape
from unicodedata import category, normalize
from urllib.parse import unquote

NAME = "threefoldmemory"
PLAIN = "("
"""Replaces a bracket that would have opened or closed a fence."""

FLAG = "\U0001f3f4"
"""The first character of the flag of a region; the rest of the flag is tag characters."""

_LETTERS = {
    "d": ("ĐđƉƊ\u0256\u0257\u0394\u03b4\u0500\u0501\u13a0\u13e7\u146f\u15de\u15ea\u1d05\ua4d2\ua4d3\uab70\uabb7"),
    "e": (
        "3ƎƏƐǝɆɇ\u0259\u025b\u0395\u03b5\u0404\u0415\u0417\u0435\u0437\u0454\u04bc\u04bd\u13ac\u1d07"
        "\u212e\u22ff\u2d39\ua4f0\uab32\uab7c\U00010286\U000118a6\U000118ae\U000118c6\U000118ce"
    ),
    "f": (
        "ſƑƒ\u025f\u03dc\u03dd\u0554\u0584\u15b4\u1e9d\ua4dd\ua730\ua798\ua799\uab35\U00010287\U000102a5"
        "\U00010525\U000118a2\U000118c2\U0001d213"
    ),
    "h": (
        "Ħħ\u0265\u0266\u029c\u0397\u03b7\u041d\u043d\u04ba\u04bb\u0540\u0570\u13bb\u13c2\u157c\u2c8e"
        "\u2c8f\ua4e7\ua78d\ua7aa\uab8b\uab92\U000102cf"
    ),
    "l": (
        "1Ii|ıŁłƖǀ\u0269\u026b\u026c\u029f\u0399\u03b9\u0406\u0456\u04c0\u04cf\u05c0\u05d5\u05df\u0627"
        "\u0661\u06f1\u07ca\u13de\u14aa\u16c1\u2223\u23fd\u2c62\u2c92\u2c93\u2cd0\u2cd1\u2d4f\ua4e1\ua4f2"
        "\ua7ad\uabae\uffe8\U0001028a\U00010309\U00010320\U0001041b\U00010443\U00010526\U000118a3"
        "\U000118b2\U000118c3\U000118d2\U00016f16\U00016f28\U0001d22a\U0001e8c7"
    ),
    "m": (
        "Ɯ\u026f\u0271\u039c\u03bc\u03fa\u03fb\u041c\u043c\u13b7\u15f0\u16d6\u1d0d\u2c6e\u2c98\u2c99"
        "\ua4df\uab87\U000102b0\U00010311"
    ),
    "o": (
        "0ØøƟ\u0275\u039f\u03a3\u03bf\u03c3\u041e\u043e\u0555\u0585\u05e1\u0647\u0665\u06be\u06c1\u06d5"
        "\u06f5\u07c0\u0966\u09e6\u0a66\u0ae6\u0b20\u0b66\u0be6\u0c02\u0c66\u0c82\u0ce6\u0d02\u0d20\u0d66"
        "\u0d82\u0e50\u0ed0\u101d\u1040\u10ff\u12d0\u1cbf\u1d0f\u1d11\u2c9e\u2c9f\u2d54\u3007\ua4f3\uab3d"
        "\U00010292\U000102ab\U00010404\U0001042c\U000104c2\U000104ea\U00010516\U000114d0\U000118a8"
        "\U000118b5\U000118b7\U000118c8\U000118d5\U000118d7\U000118e0"
    ),
    "r": (
        "ƦɌɍ\u0279\u027d\u027e\u0280\u0413\u0433\u13a1\u13b1\u13d2\u1587\u1d26\u2c64\u2c84\u2c85\ua4e3"
        "\uab47\uab48\uab71\uab81\uaba2\U000104b4\U000104dc\U00016f35\U0001d216"
    ),
    "t": (
        "ŦŧƫƬƭƮ\u0287\u0288\u03a4\u03c4\u0422\u0442\u13a2\u1d1b\u22a4\u27d9\u2ca6\u2ca7\ua4d4\ua7b1\uab72"
        "\U00010297\U000102b1\U00010315\U000118bc\U000118dc\U00016f0a\U0001f768"
    ),
    "y": (
        "ƔƳƴɎɏ\u0263\u028e\u028f\u0393\u03a5\u03b3\u03c5\u0423\u0443\u04ae\u04af\u10e7\u13a9\u13bd\u1ca7"
        "\u1d8c\u1efe\u1eff\u2ca8\u2ca9\ua4ec\uab5a\uab79\uab8d\U000102b2\U000118a4\U000118c4\U00016f43"
    ),
}
_ANGLES = (
    "<\u00ab\u02c2\u02f1\u1438\u16b2\u2039\u226a\u226e\u22d6\u22d8\u2329\u25c0\u25c1\u25c2\u25c3\u276c\u276e\u2770"
    "\u27e8\u27ea\u2991\u29fc\u2a9d\u2aa1\u2aa3\u3008\u300a\ufe3d\ufe3f\ufe64\uff1c\U0001d236"
)
_SQUARES = (
    "[{\u23b4\u2774\u27e6\u2983\u2997\u300c\u300e\u3010\u3014\u3016\u3018\u301a\ufe17\ufe37\ufe39\ufe3b\ufe41\ufe43"
    "\ufe47\ufe5b\ufe5d\uff3b\uff5b\uff62"
)
"""Brackets that only count with a slash after them: [threefold-memory] may be an honest link."""
_SLASHES = (
    "/\\\u1735\u2041\u2044\u2215\u2216\u2571\u2572\u27cb\u27cd\u29f5\u29f8\u29f9\u2cc6\u2f02\u2f03\u3033\u30ce\u31d3"
    "\u31d4\u4e36\u4e3f\ufe68\uff0f\uff3c\U0001d20f\U0001d23a\U0001d23b"
)
_UNSEEN = "\u115f\u1160\u2800\u3164\uffa0"  # letters and symbols by their category

_LOOKS = {
    **{look: letter for letter, looks in _LETTERS.items() for look in looks},
    **{chr(start + ord(letter) - ord("a")): letter for letter in _LETTERS for start in (0x1F150, 0x1F170, 0x1F1E6)},
    **dict.fromkeys(_ANGLES, "<"),
    **dict.fromkeys(_SQUARES, "["),
    **dict.fromkeys(_SLASHES, "/"),
    **dict.fromkeys(_UNSEEN, " "),
}

# What follows "&", "%" or a backslash in an escape. Escapes may be escaped themselves.
_ENTITY = r"(?:amp;)*+(?:#0*+\d{1,7};?|#x0*+[0-9a-f]{1,6};?|[a-z][a-z0-9]{1,30}+;|lt)"
_PERCENT = r"(?:25)*+(?:[0-7][0-9a-f]|[c-f][0-9a-f](?:%(?:25)*+[89ab][0-9a-f]){1,3})"
_BACKSLASH = (
    r"(?:(?-i:U)00[01][0-9a-f]{5}|ud[89ab][0-9a-f]{2}\\++ud[c-f][0-9a-f]{2}|u[0-9a-f]{4}|u\{0*+[0-9a-f]{1,6}\}"
    r"|x[0-9a-f]{2}|x\{0*+[0-9a-f]{1,6}\}|[0-3]?[0-7]{2})"
)
_ESCAPE = re.compile(rf"&{_ENTITY}|%{_PERCENT}|\\++{_BACKSLASH}", re.IGNORECASE)
_CODE = re.compile(r"[0-9a-f]+", re.IGNORECASE)

# A bracket, or an escape that may stand for one, unless the next character rules out the name. This rejects nearly all
# brackets of HTML, JSON and code (16,000 characters take 0.1 to 1 ms). A backslash escape only starts at the first
# backslash of a run: starting at each of them would read a long run once for each of its characters. The signs that may
# stand between bracket and name contain no bracket, so no run of signs is read twice.
_MAYBE_PERCENT = r"(?:25)*+(?:[357][cb]|(?:c[2b]|e[123f]|f0)%)"
_MAYBE_BACKSLASH = r"(?:u(?:00[357ab]|02[cf]|1[46]|2[0-9a]|30|f[ef]|d8)|[ux]\{|u000|[x0-3]?[357][cb34])"
_BRACKET = re.compile(
    rf"[{re.escape(_ANGLES + _SQUARES)}&%\\]"
    rf"(?:(?<![&%\\\[{{])|(?<=[\[{{])(?=\s*+[^\s!-$'-.0-\[\]-~])"
    rf"|(?i:(?<=&){_ENTITY}|(?<=%)(?={_MAYBE_PERCENT}){_PERCENT}"
    rf"|(?<=\\)(?<!\\\\)\\*+(?={_MAYBE_BACKSLASH}){_BACKSLASH}))"
    r"(?=[\s/!-$')-.:;=-@\]^_`|}~]*+(?![(0-9<A-SU-\[a-su-z{]|[tT][0-9A-GI-Za-gi-z]))"
)
# An escape of a character that begins an escape, such as "&#38;" in "&#38;lt;", or a wide form of such a character.
_NESTED = re.compile(  # without IGNORECASE, which makes the search several times slower
    r"[&%\\\ufe60\ufe68\ufe6a\uff03\uff05\uff06\uff1b\uff3c](?:(?<=[\ufe60-\uff3c])"
    r"|(?<=&)(?:amp;)*+(?:#0*+3[78];?|#0*+92;?|#[xX]0*+(?:2[56]|5[cC]);?|(?:percnt|bsol);)"
    r"|(?<=%)(?:25)*+(?:26|5[cC])|(?<=%)25(?!2[56]|5[cC])"
    r"|(?<=\\)(?<!\\\\)\\*+(?:u00|[xX]|U000000|[ux]\{0*+)(?:2[56]|5[cC])\}?)"
)
NESTED_LEVELS = 8
_PAIRS = {"m": "rn", "d": "cl"}
"""Letters that two others look like."""

_TAGS = re.compile(
    "[\U0001f3f4\U000e0000-\U000e007f](?:(?<=\U0001f3f4)[\U000e0030-\U000e0039\U000e0061-\U000e007a]{1,8}\U000e007f)?"
)


def disarm(text: str) -> str:
    """Replace the bracket of everything that a model could read as an opening or closing fence.

    Tag characters (U+E0000 to U+E007F) are removed, because models read them and people do not see them. Those in
    the flag of a region stay.
    """
    if not text.isascii():
        text = _TAGS.sub(lambda found: found[0] if found[0][0] == FLAG else "", text)
    return _without_nested(_without_brackets(text))


def _without_nested(text: str) -> str:
    """Decode escapes of escapes if that gives a fence, and neutralise it; return other text unchanged.

    A fixed number of levels keeps the work linear.
    """
    shown = plain = text
    for _ in range(NESTED_LEVELS):
        decoded = _NESTED.sub(lambda found: _introducer(found[0]), plain)
        if decoded == plain:
            break
        plain = _without_brackets(decoded)
        shown = shown if plain == decoded else plain
    return shown


def _introducer(written: str) -> str:
    """Return the character that an escape of "&", "%" or a backslash stands for."""
    return decode(written) if len(written) > 1 else normalize("NFKC", written)


def _without_brackets(text: str) -> str:
    kept: list[str] = []
    done = 0
    for bracket in _BRACKET.finditer(text):
        looks = "".join(map(look, decode(bracket[0]))).strip()
        if looks in ("<", "[") and _names_fence(text, bracket.end(), slash_needed=looks == "["):
            kept += [text[done : bracket.start()], PLAIN]
            done = bracket.end()
    return "".join([*kept, text[done:]]) if kept else text


@lru_cache(4096)
def look(char: str) -> str:
    """Return the letters that a character looks like: "<" or "[" for a bracket, "/" for a slash, " " for an
    invisible character, "-" for other symbols."""
    if char in _LOOKS:
        return _LOOKS[char]
    plain = [part for part in normalize("NFKD", char).casefold() if category(part)[0] not in "MZC"]
    letters = [_LOOKS.get(part, part) for part in plain]
    return "".join(letters if len(letters) == 1 else filter(str.isalnum, letters)) or (" " if not plain else "-")


@lru_cache(4096)
def decode(written: str) -> str:
    """Return the character that an escape stands for; return other text unchanged."""
    if written[0] == "&" and len(written) > 1:
        return unescape("&" + written.lstrip("&").replace("amp;", ""))
    if written[0] == "%" and len(written) > 1:
        return unquote(re.sub("%(?:25)+", "%", written))
    if written[0] == "\\" and len(written) > 1:
        return _unescaped(written.lstrip("\\"))
    return written


def _unescaped(code: str) -> str:
    """Return the character of a backslash escape, given without its backslashes."""
    if code[0] not in "uUxX":
        return chr(int(code, 8))
    numbers = [int(found, 16) for found in _CODE.findall(code)]
    if len(numbers) > 1:
        return chr(0x10000 + ((numbers[0] & 0x3FF) << 10) + (numbers[1] & 0x3FF))
    return chr(numbers[0]) if numbers[0] <= 0x10FFFF else ""


def _names_fence(text: str, at: int, *, slash_needed: bool) -> bool:
    """Return True if the name of the fence follows a bracket. No part of the text is read more than twice."""
    slashed = not slash_needed
    spelt, first = 0, ""
    for char in _read(text, at):
        for seen in look(char):
            slashed = slashed or seen == "/"
            pair = _PAIRS.get(NAME[spelt], "")
            if slashed and (seen == NAME[spelt] or first + seen == pair):
                spelt, first = spelt + 1, ""
                if spelt == len(NAME):
                    return True
            elif pair.startswith(seen) and not first:
                first = seen
            elif _ends_search(char, seen) or (spelt == 0 and _rules_out(char, seen, slash_needed=slash_needed)):
                return False
    return False


def _ends_search(char: str, seen: str) -> bool:
    """Inside the name, everything but other letters, digits and the next bracket is skipped."""
    return seen == "<" or (char.isalnum() and seen.isalnum())


def _rules_out(char: str, seen: str, *, slash_needed: bool) -> bool:
    """Before the name, a bracket that was replaced ends the search, so that the text before it stays as it is. Where a
    slash is needed, only slashes and what is not seen may come first."""
    return char == PLAIN or (slash_needed and seen not in " /")


def _read(text: str, at: int) -> Iterator[str]:
    """Yield the characters from an index on, escapes decoded."""
    while at < len(text):
        escape = _ESCAPE.match(text, at) if text[at] in "&%\\" else None
        at = at + 1 if escape is None else escape.end()
        yield from decode(text[at - 1] if escape is None else escape[0])
