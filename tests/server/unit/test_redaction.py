"""Secrets are found in usual places, ordinary words stay, and redaction takes linear time."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from threefold_server.text import redaction
from threefold_server.text.redaction import redact, redact_json, redactor_for

# Each secret is built from two parts, so that no scanner of source code reports it.
GITHUB = "ghp_" + "abcdefghijklmnopqrstuvwxyzABCDEF0123"
AWS = "AKIA" + "IOSFODNN7EXAMPLE"
JWT = "eyJhbGciOiJIUzI1NiJ9" + ".eyJzdWIiOiIxIn0.abcdefghijklmnopqrstuvwxyz012345"
PEM = "-----BEGIN RSA PRIVATE " + "KEY-----\nMIIEpAIBAAKCAQEA75xxxxxxx\nAb3=\n-----END RSA PRIVATE KEY-----"

FOUND = [
    (f"it is {GITHUB}.", "it is [redacted: GitHub Token]."),
    (f"{AWS}, in Ohio", "[redacted: AWS Access Key], in Ohio"),
    ("use sk-ant-" + "api03-abcdefghij0123456789", "use [redacted: API key]"),
    (f"Authorization: Bearer {JWT}", "Authorization: Bearer [redacted: JSON Web Token]"),
    (f"a\n{PEM}\nb", "a\n[redacted: private key]\nb"),
    (json.dumps({"k": PEM}), '{"k": "[redacted: private key]"}'),
    ("postgres://ana:s3cret" + "@host/db", "postgres[redacted: Basic Auth Credentials]host/db"),
    ("My password is hunter2.", "My password is [redacted: password]."),
    ("Das Passwort lautet Geheim!42", "Das Passwort lautet [redacted: password]"),
    ("PIN: 4711, please", "PIN: [redacted: password], please"),
    ('{"api_key":"abc123def456ghi"}', '{"api_key":"[redacted: key]"}'),
    ('aws_secret_access_key = "wJalrXUtnFEMI/K7MDENG/bPx"', 'aws_secret_access_key = "[redacted: key]"'),
    ("pay with 4111 1111 1111 1111!", "pay with [redacted: card number]!"),
    ("3782-822463-10005", "[redacted: card number]"),
    ("４１１１１１１１１１１１１１１１", "４１１１１１１１１１１１１１１１"),
    ("4111111111111111 and 5500005555555559", "[redacted: card number] and [redacted: card number]"),
]
ORDINARY = [
    "the password is wrong",
    "spinning is 4711 times better",
    "max_tokens: 4096",
    "the secret is to stir 3 times",
    "order 1234 5678 9012 3456",
    "ts 1780000000000000",
    "call +49 170 1234567890",
    "https://example.org/path/to/a/very/long/page?x=1",
    "Donaudampfschifffahrtsgesellschaft",
    "a commit: 3cd3fcb0f1e2d3c4b5a697887766554433221100",
    "",
]


@pytest.mark.parametrize(("text", "clean"), FOUND)
def test_secret_is_replaced(text: str, clean: str) -> None:
    assert redact(text) == clean
    assert redact(clean) == clean


@pytest.mark.parametrize("text", ORDINARY)
def test_ordinary_text_is_unchanged(text: str) -> None:
    assert redact(text) is text


@given(st.text())
def test_secret_is_found_in_any_text(text: str) -> None:
    assert redact(f"{text} {GITHUB} {text}").count(GITHUB) == 0


HOSTILE = "password= password=a token=a1 eyJ eyJaaaaaaaaa. sk-aaaaaaaaaaaaaaaaaaaaaaaa ://a: xoxb-1- 4- -----BEGIN"
HOSTILE_WITH_SPACES = ["-----BEGIN PRIVATE KEY-----AAAAAAAAAAAAAAAA", "password ", "key=  ", "aws key ", "1 "]


@pytest.mark.parametrize("hostile", [*HOSTILE.split(), *HOSTILE_WITH_SPACES])
def test_redaction_takes_linear_time(hostile: str) -> None:
    """A quadratic match would take minutes here and run into the timeout."""
    redact(hostile * (300_000 // len(hostile)))


def test_json_stays_valid_and_is_unchanged_without_secrets() -> None:
    untouched = '{ "a" : [1, "b", null, {"c": "\\u00e4"}] }'
    assert redact_json(untouched, redact) is untouched
    assert json.loads(redact_json(json.dumps({GITHUB: ["x", {"y": f"{GITHUB} z"}], "n": 1}), redact)) == {
        "[redacted: GitHub Token]": ["x", {"y": "[redacted: GitHub Token] z"}],
        "n": 1,
    }
    assert redact_json(f"not JSON {GITHUB}", redact) == "not JSON [redacted: GitHub Token]"


def test_redaction_can_be_turned_off() -> None:
    assert redactor_for("off")(GITHUB) == GITHUB


def test_service_and_models_share_one_redactor() -> None:
    assert redactor_for("derived") is redactor_for("derived")


def test_missing_detector_is_an_error_at_startup(monkeypatch: pytest.MonkeyPatch) -> None:
    redaction._library.cache_clear()  # pyright: ignore[reportPrivateUsage]
    redactor_for.cache_clear()
    monkeypatch.setitem(sys.modules, "detect_secrets.plugins.aws", None)
    with pytest.raises(ImportError):
        redactor_for("derived")
    monkeypatch.undo()
    redactor_for("all")


def test_redaction_keeps_the_warning_filters_of_the_process() -> None:
    code = """if True:
        import warnings
        from threefold_server.text.redaction import redact
        redact("my password is hunter2!")
        warnings.warn("look here", stacklevel=1)
    """
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "UserWarning: look here" in ended.stderr
