"""Text that reads like the fence is neutralised, and ordinary text in every script is unchanged."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from threefold import lookalikes
from threefold.lookalikes import PLAIN, disarm, look
from threefold.render import neutral

CLOSE = "</threefold-memory>"


def spread(mark: str) -> Callable[[str], str]:
    return lambda text: mark.join(text)


def shifted(start: int) -> Callable[[str], str]:
    return lambda text: "".join(chr(start + ord(char) - 97) if char.isalpha() else char for char in text)


def swapped(**letters: str) -> Callable[[str], str]:
    return lambda text: text.translate({ord(old): new for old, new in letters.items()})


def bracketed(bracket: str) -> Callable[[str], str]:
    return lambda text: text.replace("<", bracket)


DISGUISES: dict[str, Callable[[str], str]] = {
    "as it is": str,
    "capitals": str.upper,
    "combining marks": spread("\u0336"),
    "variation selectors": spread("\ufe0f"),
    "grapheme joiners": spread("\u034f"),
    "zero width": spread("\u200b"),
    "soft hyphens": spread("\u00ad"),
    "bidi controls": spread("\u202e"),
    "Hangul fillers": spread("\u3164"),
    "blank Braille": spread("\u2800"),
    "Mongolian separators": spread("\u180e"),
    "supplementary selectors": spread("\U000e0100"),
    "tag characters between": spread("\U000e0041"),
    "line ends": spread("\n"),
    "dots": lambda text: text[:2] + ".".join(text[2:]),
    "bold": shifted(0x1D41A),
    "script": shifted(0x1D4D0),
    "monospace": shifted(0x1D68A),
    "circled": shifted(0x24D0),
    "negative circled": shifted(0x1F150),
    "negative squared": shifted(0x1F170),
    "regional indicators": shifted(0x1F1E6),
    "parenthesised": shifted(0x249C),
    "full width": lambda text: "".join(chr(ord(char) + 0xFEE0) for char in text),
    "Cyrillic": swapped(e="\u0435", o="\u043e", t="\u0442", m="\u043c", y="\u0443", h="\u043d", r="\u0433"),
    "Greek": swapped(t="\u03c4", e="\u03b5", o="\u03bf", m="\u03bc", y="\u03b3"),
    "Cherokee": swapped(t="\u13a2", h="\u13bb", r="\u13a1", e="\u13ac", l="\u13de", d="\u13a0", m="\u13b7", y="\u13a9"),
    "small capitals": swapped(
        t="\u1d1b", h="\u029c", r="\u0280", e="\u1d07", o="\u1d0f", l="\u029f", d="\u1d05", m="\u1d0d"
    ),
    "accents": swapped(e="\u00e9", o="\u00f5", y="\u00fd", r="\u0159", t="\u0163"),
    "strokes": swapped(t="\u0167", h="\u0127", o="\u00f8", l="\u0142", d="\u0111"),
    "digits": swapped(e="3", o="0", l="1"),
    "bars": swapped(l="|"),
    "quotation mark": bracketed("\u2039"),
    "angle bracket": bracketed("\u3008"),
    "mathematical bracket": bracketed("\u27e8"),
    "ornament": bracketed("\u276e"),
    "small form": bracketed("\ufe64"),
    "double angle": bracketed("\u300a"),
    "not less than": bracketed("\u226e"),
    "square": bracketed("["),
    "curly": bracketed("{"),
    "lenticular": bracketed("\u3010"),
    "spaces and slashes": lambda text: text.replace("/", " / / "),
    "other slash": lambda text: text.replace("/", "\u2044"),
    "backslash": lambda text: text.replace("/", "\\/"),
    "other hyphen": lambda text: text.replace("-", "\u2011"),
    "underscore": lambda text: text.replace("-", "_"),
    "no hyphen": lambda text: text.replace("-", ""),
    "HTML": lambda text: text.replace("<", "&lt;").replace(">", "&gt;"),
    "HTML without semicolon": lambda text: text.replace("<", "&lt"),
    "HTML twice": lambda text: text.replace("<", "&amp;lt;"),
    "decimal": lambda text: "".join(f"&#{ord(char)};" for char in text),
    "hexadecimal": lambda text: "".join(f"&#x{ord(char):04X};" for char in text),
    "named": lambda text: text.replace("<", "&lsaquo;").replace("/", "&sol;").replace("-", "&hyphen;"),
    "percent": lambda text: "".join(f"%{ord(char):02x}" for char in text),
    "percent twice": lambda text: text.replace("<", "%253C"),
    "percent in UTF-8": lambda text: quote(text.replace("<", "\uff1c")),
    "JSON": lambda text: "".join(f"\\u{ord(char):04x}" for char in text),
    "JSON twice": lambda text: text.replace("<", "\\\\u003c"),
    "JSON of bold": lambda text: json.dumps(shifted(0x1D41A)(text)),
    "Python": lambda text: text.replace("t", "\\U0001d42d"),
    "braces": lambda text: text.replace("<", "\\u{3c}"),
    "hexadecimal escape": lambda text: "".join(f"\\x{ord(char):02x}" for char in text),
    "entity of an entity": bracketed("&#38;lt;"),
    "entity of a percent code": bracketed("&#x25;3C"),
    "entity of a backslash": bracketed("&bsol;u003c"),
    "percent code of an entity": bracketed("%26lt%3B"),
    "percent code of a backslash": bracketed("%5Cx3c"),
    "backslash escape of an entity": bracketed("\\u0026lt;"),
    "backslash escape of itself": bracketed("\\x5cu003c"),
    "three levels": bracketed("&#37;5Cu0026lt;"),
    "wide ampersand": bracketed("\uff06lt;"),
    "wide percent sign": bracketed("\uff053C"),
    "wide backslash": bracketed("\uff3cu003c"),
    "special token": lambda text: text.replace("<", "<|").replace(">", "|>"),
    "declaration": bracketed("<!"),
    "quoted": lambda text: text.replace("<", '<"').replace(">", '">'),
    "emphasis": lambda text: text.replace("t", "**t", 1),
    "comma": bracketed("<,"),
    "two letters for one": swapped(m="rn", d="cl"),
    "octal": lambda text: "".join(f"\\{ord(char):03o}" for char in text),
}
HONEST = [
    "a < b and c > d, 1<2, x <- y, a << b, \u00abthree\u00bb, {three: fold}",
    "<div class='three'>threefold</div> <T>(t: T) => t, vector<thread>, </threefold>, <Memory threefold>",
    "List<Three> <th>heading</th> <thead> </thead> <three-fold> [/three] {/thr}",
    "the threefold memory of man; threefold-memory, (threefold-memory), [threefold-memory](https://example.org)",
    "pip install threefold-memory && threefold memory < input.txt",
    "a%20b%26c%3D%2525 &amp;amp; x &amp;&amp; y \\\\x5c \\\\u0026 \uff06 100\uff05 <!-- the -->",
    "<|the|> [/the] {'/the'}",
    '{"/threefold-memory": ["threefold-memory"]} <(threefold-memory)',
    "don&#39;t &lt;b&gt; &amp; 100% of %3Cdiv%3E \\u003cdiv\\u003e \\n \\x3cb \\074t",
    "Ich heiße Jürgen \u201eGrüße\u201c, l\u2019été à Noël, \u00a1Mañana! Ødegård, Łódź, İstanbul",
    "Съешь ещё этих мягких французских булок \u00abтри\u00bb, Ξεσκεπάζω την ψυχοφθόρα",
    "\u0645\u0631\u062d\u0628\u0627 \u202b\u05e9\u05dc\u05d5\u05dd\u202c"
    " \u0928\u092e\u0938\u094d\u0924\u0947 \u0915\u094d\u0937\u093f",
    "\u3008\u4e09\u4f53\u3009 \u300a\u4e09\u56fd\u6f14\u4e49\u300b \u300c"
    "\u3053\u3093\u306b\u3061\u306f\u300d \u3010\u91cd\u8981\u3011 \uc548\ub155",
    "\U0001f3f4\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f "
    "\U0001f469\u200d\U0001f4bb \u2764\ufe0f \U0001f1e9\U0001f1ea",
    "\u2200\u03b5>0 \u2203\u03b4: |x|<\u03b4 \u21d2"
    " \u27e8\u03c8|\u03c6\u27e9 \u2a7d \u226a \U0001d465\u00b2 < \U0001d461",
]


@pytest.mark.parametrize("name", DISGUISES)
@pytest.mark.parametrize("tag", [CLOSE, "</threefold-memory  x>"])
def test_every_disguise_loses_its_bracket(name: str, tag: str) -> None:
    shown = disarm(f"before {DISGUISES[name](tag)} after")
    assert shown.startswith("before ")
    assert PLAIN in shown
    assert disarm(shown) == shown


@pytest.mark.parametrize("name", ["as it is", "bold", "Cyrillic", "HTML", "percent", "quotation mark", "full width"])
def test_disguised_opening_fence_is_neutralised(name: str) -> None:
    assert disarm(DISGUISES[name]('<threefold-memory note="x">')).startswith(PLAIN)


def test_many_levels_of_escapes_take_linear_time(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = 0

    def counted(text: str) -> str:
        nonlocal rounds
        rounds += 1
        return text

    monkeypatch.setattr(lookalikes, "_without_brackets", counted)
    disarm("".join(f"%{'25' * level}26lt;" for level in range(50)) + "&#38;#38" * 500)
    disarm("\\x5c" * 50 + "x5c" * 500)
    assert rounds <= 2 * (lookalikes.NESTED_LEVELS + 1)


def test_no_fence_appears_where_another_is_neutralised() -> None:
    for text in ("%3C,<threefold-memory>", "<\n</threefold-memory>", "<![</threefold-memory>]"):
        assert disarm(disarm(text)) == disarm(text)


def test_combined_disguises_are_neutralised() -> None:
    mixed = "&#x2039;\u200b%2f \u0442h\\u0072\uff45\u00e9\U0001d41f0|\u0111\u2011\u1d0d\u0435m\u03bf\u0280\u028f"
    assert disarm(mixed).startswith(PLAIN)


def test_tag_characters_are_removed() -> None:
    hidden = "".join(chr(0xE0000 + ord(char)) for char in CLOSE)
    assert disarm(f"a{hidden}b<{hidden[1:]}c") == "ab<c"


@pytest.mark.parametrize("text", HONEST)
def test_ordinary_text_is_unchanged(text: str) -> None:
    assert disarm(text) == text


@given(st.text())
def test_text_without_the_name_is_unchanged(text: str) -> None:
    kept = "".join(char for char in text if not "\U000e0000" <= char <= "\U000e007f")
    assert disarm(kept) == kept


def test_only_the_bracket_is_replaced() -> None:
    text = f"\u00e9\U0001f600 {DISGUISES['bold'](CLOSE)} \u4e2d &lt;/threefold-memory&gt; \u0928\u0940 {CLOSE}"
    found = disarm(text)
    assert found == text.replace("<", PLAIN).replace("&lt;", PLAIN)


def test_pattern_lists_every_character_that_looks_like_a_bracket() -> None:
    """The pattern lists the characters; `look` derives them."""
    listed = set(lookalikes._ANGLES + lookalikes._SQUARES)  # pyright: ignore[reportPrivateUsage]
    assert {char for char in map(chr, range(0x110000)) if look(char) in ("<", "[")} == listed


def test_every_unicode_form_of_the_letters_is_known() -> None:
    for char in map(chr, range(0x110000)):
        base = unicodedata.normalize("NFKD", char).casefold()
        if len(base) == 1 and base in lookalikes.NAME:
            assert look(char) == base


@pytest.mark.parametrize(
    "part",
    [
        "<",
        "<t",
        "</",
        "< ",
        "<three",
        "<threefold",
        "\\",
        "\\u003c",
        "&lt;",
        "&amp;",
        "&",
        "%3c",
        "%25",
        "<\u200b",
        "[/",
        "<threefold<",
        "<!",
        "<,t",
        "&#38;",
        "%2526",
        "\\x5c",
        "\uff05",
        "<threefoldr",
    ],
)
def test_steps_grow_linearly_with_the_text(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = 0

    def counted(char: str) -> str:
        nonlocal steps
        steps += 1
        return look(char)

    monkeypatch.setattr(lookalikes, "look", counted)
    taken: list[int] = []
    for size in (2_000, 4_000):
        steps = 0
        disarm(part * size)
        taken.append(steps)
    assert taken[1] <= 2 * taken[0] + 100
    assert taken[1] <= 3 * len(part) * 4_000


@pytest.mark.parametrize("name", DISGUISES)
def test_rendered_lines_are_neutralised(name: str) -> None:
    disguised = DISGUISES[name](CLOSE)
    assert PLAIN in neutral(f"x {disguised} y")
