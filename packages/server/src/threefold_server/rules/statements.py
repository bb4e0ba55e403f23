"""Rules that tell, without a model, whether two statements say the same or contradict each other. Pure.

The rules are conservative: when they are not sure, they say neither.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Literal, TypeAlias

Relation: TypeAlias = Literal["new", "same", "excludes"]
"""A statement about something else, the same statement, or one that contradicts the other."""

# Attributes with one value at a time. "My friend is …" is not among them: it may be true of two people.
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
    """Return a statement in the form in which it is compared: case and white space folded, no full stop."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split()).rstrip(".! ")


def relation_by_rule(new: str, known: str) -> Relation | None:
    """Return `same` for the same words and `excludes` for two values of a single-valued attribute, else None."""
    if plain(new) == plain(known):
        return "same"
    one, other = _attribute(new), _attribute(known)
    if one is None or other is None or one[0] != other[0]:
        return None
    return "excludes" if one[1] != other[1] and _value_type(one[1]) == _value_type(other[1]) != "" else None


def _attribute(text: str) -> tuple[str, str] | None:
    """Return the single-valued attribute that a statement is about, and its value."""
    found = _ATTRIBUTE.fullmatch(text.strip().rstrip(".!"))
    if found is None or _HEDGED.search(plain(text)):
        return None
    what = plain(found["what"])
    if what.startswith("the ") and what.count(" ") == 1:  # "the price" does not say which one
        return None
    noun = re.split(r" (?:of|for|in|at|on) ", what)[0].split()[-1]
    return (what, found["value"].strip()) if noun in _SINGLE else None


def _value_type(value: str) -> str:
    """Return "number", "name", or "" for other values, of which two may be true at once."""
    if any(map(str.isdigit, value)):
        return "number"
    words = value.split()
    return "name" if words and len(words) <= 3 and all(word[0].isupper() for word in words) else ""
