"""When two statements say the same, and when they exclude each other, without asking a model. Pure, and conservative:
whatever is not sure is neither."""

from __future__ import annotations

import re
import unicodedata
from typing import Literal, TypeAlias

Relation: TypeAlias = Literal["new", "same", "excludes"]
"""A statement about something else, the same statement again, or one that cannot hold together with the other."""


# What a person or a thing has one of at a time. "My friend is …" may be said of two.
_SINGLE = frozenset(
    """
    account address age airport birthday boss budget capital ceo city code colour color cost currency date deadline
    doctor duration editor email employer extension height host id job language lead leader limit location locker
    manager model name number owner passport phone plan port price project quota rate release rent room salary score
    seat size status target team temperature time timezone title total url version weight
    """.split()
)
_OWNER = r"(?:my|our|the|[A-Z][\w-]*'s)"
_ATTRIBUTE = re.compile(
    rf"(?P<what>{_OWNER} [^,;:.?!]{{1,60}}?) (?:is now|is|has changed to|was changed to|changed to) (?P<value>.+)",
    re.IGNORECASE,
)
_HEDGED = re.compile(r"\b(?:not|maybe|perhaps|probably|possibly|might|could|also|if|or|either|usually|sometimes)\b")


def plain(text: str) -> str:
    """A statement as it is compared: letters and blanks in one form, without the full stop."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split()).rstrip(".! ")


def relation_by_rule(new: str, known: str) -> Relation | None:
    """`same` for the same words, `excludes` for another value of what has one value; None: these rules cannot tell."""
    if plain(new) == plain(known):
        return "same"
    one, other = _attribute(new), _attribute(known)
    if one is None or other is None or one[0] != other[0]:
        return None
    return "excludes" if one[1] != other[1] and _kind(one[1]) == _kind(other[1]) != "" else None


def _attribute(text: str) -> tuple[str, str] | None:
    """What a statement gives the one value of, and the value."""
    found = _ATTRIBUTE.fullmatch(text.strip().rstrip(".!"))
    if found is None or _HEDGED.search(plain(text)):
        return None
    what = plain(found["what"])
    if what.startswith("the ") and what.count(" ") == 1:  # "the price": of what, the statement does not say
        return None
    noun = re.split(r" (?:of|for|in|at|on) ", what)[0].split()[-1]
    return (what, found["value"].strip()) if noun in _SINGLE else None


def _kind(value: str) -> str:
    """A number, a name, or ("") anything else, of which two may well hold together."""
    if any(map(str.isdigit, value)):
        return "number"
    words = value.split()
    return "name" if words and len(words) <= 3 and all(word[0].isupper() for word in words) else ""
