"""Replaces secrets and card numbers in texts. Most patterns come from detect-secrets."""

from __future__ import annotations

import json
import logging
import re
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Literal, NamedTuple

from stdnum import luhn

from threefold_server.text.remembered import Remembered

Policy = Literal["off", "derived", "all"]
Redact = Callable[[str], str]

# The detectors of detect-secrets that take linear time and rarely mistake prose for a key. Left out: guesses by entropy
# or keyword, which are for source code, and IBM's and npm's, which take seconds for a hostile line.
DETECTORS = (
    "aws.AWSKeyDetector",
    "azure_storage_key.AzureStorageKeyDetector",
    "basic_auth.BasicAuthDetector",
    "discord.DiscordBotTokenDetector",
    "github_token.GitHubTokenDetector",
    "gitlab_token.GitLabTokenDetector",
    "mailchimp.MailchimpDetector",
    "pypi_token.PypiTokenDetector",
    "sendgrid.SendGridDetector",
    "slack.SlackDetector",
    "square_oauth.SquareOAuthDetector",
    "stripe.StripeDetector",
    "telegram_token.TelegramBotTokenDetector",
    "twilio.TwilioKeyDetector",
)


class _SecretPattern(NamedTuple):
    """A pattern, and the number of its group that is the secret."""

    name: str
    pattern: re.Pattern[str]
    group: int = 0


# Secrets that the library does not find, or finds by a pattern that backtracks.
_OWN = (
    _SecretPattern("API key", re.compile(r"(?<![\w-])(?:sk-|hf_|AIza|glpat-)[\w-]{20,}+")),
    _SecretPattern("JSON Web Token", re.compile(r"(?<![\w-])eyJ[\w-]{8,}+\.[\w-]{8,}+(?:\.[\w-]*+)?")),
    _SecretPattern("npm token", re.compile(r"_authToken=([^\s\"']{16,}+)"), 1),
)
_PRIVATE_KEY = _SecretPattern(
    "private key",
    re.compile(
        r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----(?:(?:\s|\\[nr])*+[A-Za-z0-9+/=]{16,}+)*+"
        r"(?:(?:\s|\\[nr])*+[A-Za-z0-9+/=]{0,15}+(?:\s|\\[nr])*+-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----)?"
    ),
)
_IS = r"[\"'`]?\s{0,3}(?:=>|:=|=|:|\b(?:is|was|lautet|ist|es|est)\b)\s{0,3}[\"'`]?"
_VALUE_END = r"(?<![.,;:!?)])"
_PASSWORD = _SecretPattern(
    "password",
    re.compile(
        rf"(?:pass(?:word|wort|wd|phrase|code)|\bpwd|\bpin|contraseña|mot de passe){_IS}"
        rf"((?=[^\s\"'`]{{0,200}}[\d!@#$%^&*+])[^\s\"'`]{{4,200}}{_VALUE_END})",
        re.IGNORECASE,
    ),
    1,
)
_KEY = _SecretPattern(
    "key",
    re.compile(
        rf"(?:api[_ -]?key|secret(?:[_ -]?access)?(?:[_ -]?key)?|access[_ -]?key|auth[_ -]?key|token){_IS}(?:Bearer\s)?"
        rf"((?=[^\s\"'`]{{0,500}}\d)(?=[^\s\"'`]{{0,500}}[A-Za-z])[^\s\"'`]{{12,500}}{_VALUE_END})",
        re.IGNORECASE,
    ),
    1,
)
_CARD = re.compile(r"[2-6](?<![\w.,-]\d)(?:[ -]?\d){12,18}(?![\w])")  # the digit comes first: looking behind is slow
_LONG_WORD = re.compile(r"(?<!\S)\S{16,}+")
_LONG = 16
"""The other secrets have at least this many characters without a space, which few words of ordinary text have."""

_PASSWORD_WORDS = ("passw", "passphrase", "passcode", "pwd", "pin", "contraseña", "mot de passe")
_KEY_WORDS = ("key", "secret", "token")


@cache
def redactor_for(policy: Policy) -> Redact:
    """Return the function that removes secrets from a text; with `off` it changes nothing.

    There is one for each policy, for the service and its models, so that a text is searched once. The detectors are
    loaded here, so that a broken one fails at start.
    """
    if policy == "off":
        return str
    _library()
    return remembering(redact)


def remembering(redact: Redact) -> Redact:
    """Return a redactor that does not search a text again in which it found no secret."""
    is_clean = Remembered(lambda text: redact(text) == text)
    return lambda text: text if is_clean(text) else redact(text)


def redact(text: str) -> str:
    """Return `text` with each secret and card number replaced by a mark."""
    done = 0
    kept: list[str] = []
    for start, end, name in sorted(_find(text)):
        if start >= done:
            kept += [text[done:start], f"[redacted: {name}]"]
        done = max(done, end)
    return "".join([*kept, text[done:]]) if kept else text


def redact_json(text: str, redact: Redact) -> str:
    """Return a JSON text with all of its strings redacted; the text itself if nothing was found."""
    try:
        value = json.loads(text)
    except ValueError:
        return redact(text)
    clean = redact_value(value, redact)
    return text if clean == value else json.dumps(clean, ensure_ascii=False)


def redact_value(value: Any, redact: Redact) -> Any:
    """Return a JSON value with all of its strings redacted."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, list):
        return [redact_value(item, redact) for item in _items(value)]
    if isinstance(value, dict):
        return {redact(key): redact_value(item, redact) for key, item in _pairs(value)}
    return value


def _items(value: Any) -> list[Any]:
    return value


def _pairs(value: Any) -> list[tuple[str, Any]]:
    return list(value.items())


def _find(text: str) -> Iterator[tuple[int, int, str]]:
    # Looking for plain words first keeps a recall fast: 16,000 characters of prose take 3 ms instead of 17.
    lower = text.lower()
    yield from _spans(text, 0, _PRIVATE_KEY)
    if any(word in lower for word in _PASSWORD_WORDS):
        yield from _spans(text, 0, _PASSWORD)
    if any(word in lower for word in _KEY_WORDS):
        yield from _spans(text, 0, _KEY)
    for found in _CARD.finditer(text):
        if luhn.is_valid("".join(str(int(char)) for char in found[0] if char.isdigit())):
            yield (*found.span(), "card number")
    if max(map(len, text.split()), default=0) >= _LONG:
        for word in _LONG_WORD.finditer(text):
            yield from _spans(word[0], word.start(), *_OWN, *_library())


def _spans(text: str, offset: int, *patterns: _SecretPattern) -> Iterator[tuple[int, int, str]]:
    for secret in patterns:
        for found in secret.pattern.finditer(text):
            start, end = found.span(secret.group)
            yield start + offset, end + offset, secret.name


@cache
def _library() -> tuple[_SecretPattern, ...]:
    """Return the patterns of detect-secrets, which is untyped and imported once."""
    from importlib import import_module

    patterns: list[_SecretPattern] = []
    show = warnings.showwarning
    for path in DETECTORS:
        module, name = path.split(".")
        detector: Any = getattr(import_module(f"detect_secrets.plugins.{module}"), name)
        patterns += [_SecretPattern(detector.secret_type, pattern) for pattern in detector.denylist]
    if warnings.showwarning is not show:  # importing it sends the warnings of this process to its log
        logging.captureWarnings(False)
    return tuple(patterns)
