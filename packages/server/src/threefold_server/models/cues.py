"""The words that the extractive digest looks for in a sentence, and their weights.

The patterns were chosen on conversations. In five LoCoMo conversations (8,274 sentences, hardly any of them a rule) 53
sentences are taken for rules. A digest of 1,200 tokens contains 33 % of the turns that LoCoMo asks questions about, and
11 % of all turns.
"""

from __future__ import annotations

import re

RULE = 100
"""The salience of a standing rule or a refusal: more than all weights together."""


def _any(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(patterns), re.IGNORECASE)


# Where a directive can begin: at the start, after punctuation, or after a word that introduces one.
_START = r"(?:^|[,;:.!?(\"“—–-]\s*|\b(?:please|and|but|so|or|then|that|just|to|must|should|shall)\s+)"
_SUBJECT = r"\b(?:i|we|you|i'll|we'll|i will|we will|he|she)\s+"
_PERSON = r"\b(?:i|we|he|she|they)\s+"
# Encouragement and memories are not rules ("never give up", "I've always loved it"); with them, false rules tripled.
_NO_RULE_AFTER = (
    r"(?!(?:been|had|saw|seen|knew|know|think|thought|worry|mind|forget|remember|regret|give up|quit|let|get|gets|got|"
    r"feel|feels|felt|be (?:afraid|sad|shy|sorry|there|able)|look|looks|here|there|there's|wanted|loved|admired|"
    r"good|great|nice|fun|a|the|so|in|by|sweat|hesitate|beat)\b)"
)
_FORBIDDEN_NOUN = r"(?!problem|worries|idea|way|doubt|wonder|one|need|kidding|thanks|rush|matter|longer|big)[\w-]+"

_RULES = _any(
    # never, always, do not, only, no
    _START + r"(?:never|always),?\s+(?:ever\s+)?" + _NO_RULE_AFTER + r"\w",
    _SUBJECT + r"(?:never|always)\s+" + _NO_RULE_AFTER + r"(?!\w+ed\b)\w",
    r"\balways[.!]*$",
    _START + r"(?:do not|don'?t|avoid|stop)\s+(?:ever\s+)?" + _NO_RULE_AFTER + r"\w",
    _START + r"only\s+(?!been|just|if|one|then|know)" + _NO_RULE_AFTER + r"\w",
    r"\b(?:i|we)\s+only\s+(?!\w+ed\b|have|know|want)" + _NO_RULE_AFTER + r"\w",
    r"\bonly(?=[.,;!]|$)|\b(?:use|reply|answer|speak|write|pay|eat|read|allow|accept|ship|work)s?\s+only\b",
    r"(?:^|[,;:]\s*)no\s+" + _FORBIDDEN_NOUN + r"(?:\s+\S+){0,4}[.!]*$",
    # must, may not; but not the guess "that must be nice"
    r"\bmust(?:n't)?\b(?!'ve|\s+(?:say|admit|feel|love|add|be|have\s+(?:been|felt|had|\w+ed))\b)(?=\s+\w)",
    r"\bmust\s+(?:always\s+)?be\s+(?:\w+ed|in|on|at|under|over|below|above|within|before|after|less|more|no|short|"
    r"sent|kept|done|paid|written|made|run)\b",
    r"\b(?:may|can|should|shall)\s*(?:not|n't|only|never)\s+(?!imagine|guess|hope|see|help|wait)"
    + _NO_RULE_AFTER
    + r"\w",
    r"\b(?:nobody|no one)\s+(?:may|must|should|shall)\b",
    # refusals
    _PERSON + r"(?:can't|cannot|can not)\s+(?:have|eat|drink|use|share|take|accept|tolerate|be)\b",
    _PERSON + r"(?:don't|do not)\s+(?:eat|drink|use|want|accept|allow|work|fly|share|sign|ship|sell)\b",
    _PERSON + r"(?:won't|will not|refuse|decline)\s+" + _NO_RULE_AFTER + r"\w|\brefus(?:e|es|ed)\s+to\b",
    r"\b(?:i'm|i am|is|are|he's|she's|they're)\s+(?:\w+ly\s+)?allergic\b",
    # words that announce a rule
    _START + r"make sure\b",
    r"\b(?:not allowed|not permitted|(?:are|is) not to|forbidden|prohibited|off[- ]limits|under no circumstances)\b",
    r"\b(?:no exceptions|without exception|at all times|from now on|required to)\b",
    r"\b(?:rules?|polic(?:y|ies)|requirements?|constraints?)\s*(?::\s*\S|(?:is|are)\s+(?:that|to|no)\b)",
    # other languages
    r"\b(?:niemals|jamais|nunca|jamás|nooit|никогда)\b|^(?:nie|mai|ne)\s+\w",
    r"^(?:\w+\s+)?(?:immer|toujours|siempre|sempre|altijd|всегда|nur|kein\w*|solo|sólo|uniquement|только)\s+\w",
    r"\b(?:verboten|auf keinen fall|darf(?:st)? (?:nicht|nie|kein\w*)|weigere|allergisch|ab sofort)\b",
    r"\b(?:interdit\w*|il faut|en aucun cas|ne (?:\w+ )?pas|refuse de|allergique|désormais)\b",
    r"\b(?:prohibid\w*|en ningún caso|me niego|no (?:debes?|puedo)|alérgic\w*|a partir de ahora)\b",
    r"\b(?:proibid\w*|vietat\w*|non (?:devi|deve|posso)|mi rifiuto|allergic[oa]|não (?:deve|posso))\b",
    r"\b(?:нельзя|запрещ\w*|не могу|отказываюсь|обязательно|аллерги\w*)",
    r"不要|不许|不准|不得|不可以|不能|绝不|决不|禁止|必须|必須|务必|只能|只用|总是|永远|拒绝|过敏|请勿",
    r"絶対に|必ず|決して|ないで|てはいけ|してはなら|アレルギー|断る",
    r"절대|반드시|항상|금지|마세요|하지 마|알레르기|거절",
)
_ASKS = _any(r"\b(?:can|could|would|will)\s+you\b", r"\bplease\b")
_QUESTION = re.compile(r"[?？؟][\"'”’»)\]」』]*$")

_OPINION = _any(
    r"\b(?:i|we)\s+(?:\w+ly\s+|just\s+)?(?:prefer|love|like|enjoy|hate|dislike)\b(?!\s+(?:how|that|your|seeing)\b)",
    r"\b(?:prefers|favou?rites?|vegan|vegetarian|decided?|decision|chose|chosen|approved|rejected|deadline)\b",
    r"\b(?:agreed (?:to|on|that)|no longer|instead of|changed (?:to|from)|plan(?:ning|s)? (?:to|on)|due (?:on|by))\b",
    r"\b(?:bevorzug\w*|lieblings\w*|liebe|mag|hasse|entschieden|vereinbart)\b",
    r"\b(?:préfère|aime|déteste|décidé|prefiero|me gusta|odio|decidi\w+|preferisco|mi piace|prefiro|gosto)\b",
    r"\b(?:предпочитаю|люблю|ненавижу|решил\w*)\b",
    r"喜欢|喜歡|讨厌|决定|決定|好き|嫌い|決め|좋아|싫어|결정",
)
_LIFE = _any(
    r"\b(?:my name is|call me|i live|i work|i study|i was born|my (?:birthday|job|address|phone|email|\w+'s name))\b",
    r"\b(?:i|we)\s+(?:\w+ly\s+|just\s+)?(?:am an?|went|got|had|made|bought|started|finished|moved|met|joined|"
    r"signed|visited|took|won|lost|found|quit|applied|passed|adopted|ran|saw|gave|married|booked|ordered|paid)\b",
    r"\bi'm an?\b|\bi've been\b",
    r"\bmy (?:mom|dad|mother|father|wife|husband|son|daughter|sister|brother|friend|boss)\b",
    r"\b(?:ich heiße|mein name|ich wohne|ich arbeite|je m'appelle|j'habite|je travaille)\b",
    r"\b(?:me llamo|vivo en|trabajo|меня зовут|живу|работаю)\b",
    r"名字|我叫|住在|工作|名前|住んで|働い|이름|살고",
)
_NUMBER = _any(r"\d", r"\b(?:two|three|four|five|six|seven|eight|nine|ten|dozen|hundred|thousand|million)\b")
_EXACT = _any(r"\d{3}", r"\d[.,:/-]\d", r"[$€£¥]\s?\d", r"\d\s?(?:%|€|eur\b|usd\b|kg\b|km\b)")
_DATE = _any(
    r"\b(?:january|february|march|april|may \d|june|july|august|september|october|november|december)\b",
    r"\b(?:januar|februar|märz|mai|juni|juli|oktober|dezember|janvier|février|mars|avril|juin|juillet|août)\b",
    r"\b(?:enero|febrero|marzo|abril|mayo|junio|julio|agosto|septiembre|octubre|noviembre|diciembre)\b",
    r"\b(?:mon|tues|wednes|thurs|fri|satur|sun)days?\b|\b(?:yesterday|tonight|tomorrow|ago)\b",
    r"\b(?:last|next|this)\s+(?:night|week|weekend|month|year|summer|winter|spring|fall|autumn)\b",
    r"\b(?:gestern|morgen|hier|demain|ayer|mañana|вчера|завтра)\b|昨天|今天|明天|昨日|今日|明日|年|月",
)
_SMALL_TALK = _any(
    r"^(?:wow|woah|thanks?|thank you|hi|hey|hello|great|awesome|cool|ok|okay|sure|yes|yeah|yep|bye|congrats)\b",
    r"^(?:sounds|that's|that is|that sounds|so glad|good (?:luck|morning|night)|take care|absolutely)\b",
    r"^(?:of course|can't wait|keep (?:up|going)|love (?:how|that|seeing|your|the))\b",
    r"^(?:i )?(?:totally |\d+% )?agreed?\b",
    r"\b(?:you're|you are) (?:so|doing|such|really)\b|\b(?:proud of|happy for) you\b|\bgreat to (?:see|hear)\b",
)
_WEIGHTS = ((_OPINION, 3), (_LIFE, 2), (_NUMBER, 2), (_EXACT, 2), (_DATE, 3), (_SMALL_TALK, -3), (_QUESTION, -2))
_NAME = re.compile(r"(?<=[^.!?:\s]\s)[^\W\d_]\w+")
_MAX_NAMES = 2
_SHORT = 20


def is_rule(sentence: str) -> bool:
    """Return True if a sentence states a standing rule or a refusal. A question does only if it asks for an action."""
    plain = sentence.replace("’", "'")
    return bool(_RULES.search(plain)) and not (_QUESTION.search(plain) and not _ASKS.search(plain))


def salience(sentence: str) -> int:
    """Return the weight of a sentence that is no rule. Below zero, the sentence is not worth keeping."""
    plain = sentence.replace("’", "'")
    names = sum(word[0].isupper() for word in _NAME.findall(plain))
    short = 2 if plain.isascii() and len(plain) < _SHORT else 0
    return sum(weight for cue, weight in _WEIGHTS if cue.search(plain)) + min(names, _MAX_NAMES) - short
