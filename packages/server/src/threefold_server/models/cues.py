"""What makes a sentence worth keeping: the words that the extractive digest looks for, and their weights."""

from __future__ import annotations

import re

RULE = 100
"""The salience of a standing rule or a refusal: above anything that the weights below add up to."""


def _any(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(patterns), re.IGNORECASE)


# Where a directive can begin: at the start, after punctuation, or after a word that introduces one.
_CLAUSE = r"(?:^|[,;:.!?(\"“—–-]\s*|\b(?:please|and|but|so|or|then|that|just|to|you|we|they|it|i|i'll|we'll|will|should)\s+)"
_RULES = _any(
    _CLAUSE + r"(?:never|always|nie|niemals|immer|jamais|toujours|nunca|jamás|siempre|sempre|mai|nooit|altijd)\s+\w",
    _CLAUSE + r"(?:никогда|всегда)\s+\w",
    _CLAUSE + r"(?:do not|don't|avoid|stop)\s+(?!know|think|worry|mind|get me wrong|forget|have|be (?:sad|shy|sorry))\w",
    _CLAUSE + r"only\s+(?!a\b|the\b|been|just|if|one|then|know)\w",
    r"\bonly[.!]*$",
    r"^no\s+(?!problem|worries|idea|way|doubt|wonder|one|need|kidding|thanks|rush|matter)\w+(?:\s+\S+){0,4}$",
    r"\bmust(?:n't)?\b(?!\s+(?:say|admit|feel|have|be\s+(?:so|really|very|hard|nice|tough|great|amazing|exciting)))",
    r"\b(?:may|can|should|could|shall|are|is|am)\s+(?:not|only|never)\s+(?:ever\s+)?(?:be\s+)?(?:to|allowed|use|share|send)",
    r"\b(?:i|we|he|she|they)\s+(?:can't|cannot|can not|won't|will not|don't|do not)\s+(?:ever\s+)?"
    r"(?:have|eat|drink|use|share|take|accept|allow|tolerate|want|do|go|fly|work|sign|agree|pay)\b",
    r"\b(?:i|we)\s+(?:refuse|decline)\b|\brefus(?:e|es|ed)\s+to\b",
    r"\b(?:not allowed|not permitted|forbidden|prohibited|off[- ]limits|allergic|under no circumstances)\b",
    r"\b(?:no exceptions|without exception|at all times|from now on|make sure|be sure to|required to)\b",
    r"\b(?:verboten|auf keinen fall|darf(?:st)? (?:nicht|nie|kein\w*)|weigere|allergisch|ab sofort)\b",
    r"\b(?:interdit\w*|il faut|en aucun cas|ne (?:\w+ )?(?:jamais|pas)|refuse de|allergique|désormais)\b",
    r"\b(?:prohibid\w*|en ningún caso|me niego|no (?:debes?|puedo)|alérgic\w*|a partir de ahora)\b",
    r"\b(?:proibid\w*|vietat\w*|non (?:devi|deve|posso)|mi rifiuto|allergic\w*|não (?:deve|posso))\b",
    r"\b(?:нельзя|запрещ\w*|не могу|отказываюсь|обязательно|аллерги\w*)",
    r"不要|不许|不准|不得|不可以|不能|绝不|决不|禁止|必须|必須|务必|只能|只用|总是|永远|拒绝|过敏|別|请勿",
    r"絶対に|必ず|決して|ないで|てはいけ|してはなら|アレルギー|断る",
    r"절대|반드시|항상|금지|마세요|하지 마|알레르기|거절",
)
_ASKS = _any(r"\b(?:can|could|would|will)\s+you\b", r"\bplease\b")
_QUESTION = re.compile(r"[?？؟][\"'”’»)\]」』]*$")

_WEIGHTS: tuple[tuple[int, re.Pattern[str]], ...] = (
    # preferences, decisions, who somebody is
    (
        3,
        _any(
            r"\b(?:prefer\w*|favou?rites?|loves?|likes?|enjoys?|hates?|dislikes?|vegan|vegetarian)\b",
            r"\b(?:deci[ds]\w*|agree[ds]?|chose|chosen|choose|approved|rejected|instead|no longer|changed?|plan\w*)\b",
            r"\b(?:my name is|call me|i am an?|i'm an?|i live|i work|moved|married|born|birthday|deadline|due|promised?)\b",
            r"\b(?:bevorzug\w*|lieblings\w*|liebe|hasse|heiße|entschieden|vereinbart|wohne|arbeite)\b",
            r"\b(?:préfère|déteste|m'appelle|décidé|habite|travaille|prefiero|me gusta|odio|me llamo|decid\w+|vivo)\b",
            r"\b(?:предпочитаю|люблю|ненавижу|решил\w*|зовут|живу|работаю)\b",
            r"喜欢|喜歡|讨厌|决定|決定|名字|我叫|住在|好き|嫌い|決め|名前|住んで|좋아|싫어|결정|이름",
        ),
    ),
    # numbers, and again the exact ones: a paraphrase cannot bring them back
    (2, _any(r"\d")),
    (2, _any(r"\d{3}", r"\d[.,:/-]\d", r"[$€£¥]\s?\d", r"\d\s?(?:%|€|eur\b|usd\b|kg\b|km\b)")),
    # dates
    (
        2,
        _any(
            r"\b(?:jan(?:uar)?y?|feb(?:ruar)?y?|march|april|june?|july?|august|sept?(?:ember)?|o[ck]tober|november|de[cz]ember)\b",
            r"\b(?:mon|tues|wednes|thurs|fri|satur|sun)days?\b|\b(?:yesterday|today|tonight|tomorrow|ago)\b",
            r"\b(?:last|next|this)\s+(?:week|weekend|month|year|summer|winter|spring|fall|autumn)\b",
            r"\b(?:gestern|heute|morgen|hier|demain|ayer|mañana|вчера|завтра)\b|昨天|今天|明天|昨日|今日|明日|年|月",
        ),
    ),
    # small talk
    (
        -3,
        _any(
            r"^(?:wow|thanks?|thank you|hi|hey|hello|great|awesome|cool|ok|okay|sure|yes|yeah|yep|bye|congrats)\b",
            r"^(?:sounds|that's|that is|that sounds|glad|so glad|good (?:luck|morning|night)|take care|absolutely|of course)\b",
        ),
    ),
    (-2, _QUESTION),
)
_NAME = re.compile(r"(?<=[^.!?:\s]\s)[^\W\d_a-z][^\W\d_]+")
_MAX_NAMES = 2
_SHORT = 15


def is_rule(sentence: str) -> bool:
    """Tell whether a sentence states a standing rule or a refusal; a question does only when it asks for something."""
    plain = sentence.replace("’", "'")
    return bool(_RULES.search(plain)) and not (_QUESTION.search(plain) and not _ASKS.search(plain))


def salience(sentence: str) -> int:
    """Return how much a sentence that is no rule is worth; below zero it is not worth a line."""
    plain = sentence.replace("’", "'")
    names = sum(1 for match in _NAME.finditer(plain) if match[0][0].isupper())
    short = 2 if plain.isascii() and len(plain) < _SHORT else 0
    return sum(weight for weight, cue in _WEIGHTS if cue.search(plain)) + min(names, _MAX_NAMES) - short
