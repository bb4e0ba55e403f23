"""The memory commands against a running service: tables for people, JSON of the contract for programs."""

from __future__ import annotations

import io
from datetime import UTC, datetime

import pytest

from fixtures.command_line import Run
from threefold import MemoryClient
from threefold.contract import (
    DigestPage,
    FactHistory,
    ForgetReceipt,
    Memory,
    MemoryPage,
    RecallResponse,
    SessionPage,
    SessionStatus,
    TurnPage,
    WriteResponse,
)
from threefold_server.cli.views import Status

SAID = "I deploy to staging on Fridays."


def test_written_turn_is_recalled_at_once(online: Run) -> None:
    written = online("write", "s1", SAID, "--name", "Ada", "--json")
    assert WriteResponse.model_validate(written.json).appended == 1
    found = RecallResponse.model_validate(online("recall", "when do I deploy?", "--session", "s2", "--json").json)
    assert found.memories[0].text == SAID
    shown = online("recall", "when do I deploy?")
    assert (shown.code, shown.err) == (0, "")
    assert SAID in shown.out
    assert "Ada" in shown.out


def test_options_of_recall_reach_the_service(online: Run) -> None:
    online("write", "s1", SAID)
    options = ["--level", "session", "--include", "short_term", "--token-budget", "300", "--top-k", "1"]
    found = online(
        "recall", "deploy", "--session", "s1", "--min-score", "0.9", "--min-trust", "0.1", *options, "--json"
    )
    answer = RecallResponse.model_validate(found.json)
    assert (answer.memories, len(answer.window), answer.tokens.budget) == ([], 1, 300)


def test_recall_without_results_says_so(online: Run) -> None:
    assert online("recall", "anything").out == "No memories found.\n"


def test_text_is_read_from_standard_input(online: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("a line\nand another\n"))
    assert online("write", "s1", "-", "--role", "tool").code == 0
    (turn,) = TurnPage.model_validate(online("sessions", "turns", "s1", "--json").json).turns
    assert (turn.role, turn.content) == ("tool", "a line\nand another\n")


def test_turn_with_an_id_is_written_once(online: Run) -> None:
    command = ("write", "s1", SAID, "--id", "t1", "--at", "2026-05-08T13:56:00+00:00", "--visibility", "agent")
    online(*command)
    assert "0 appended, 1 duplicates" in online(*command).out
    (turn,) = TurnPage.model_validate(online("sessions", "turns", "s1", "--json").json).turns
    assert (turn.created_at, turn.visibility) == (datetime(2026, 5, 8, 13, 56, tzinfo=UTC), "agent")


def test_memories_are_listed_page_by_page(online: Run) -> None:
    online("facts", "save", "Staging stands in Lisbon.")
    online("write", "s1", SAID)
    page = MemoryPage.model_validate(online("list", "--limit", "1", "--json").json)
    assert len(page.items) == 1
    assert f"More: --cursor {page.next_cursor}\n" in online("list", "--limit", "1").out
    rest = MemoryPage.model_validate(online("list", "--cursor", page.next_cursor, "--json").json)
    assert {item.text for item in (*page.items, *rest.items)} == {SAID, "Staging stands in Lisbon."}
    only = MemoryPage.model_validate(online("list", "--kind", "fact", "--order", "access_count", "--json").json)
    assert [item.kind for item in only.items] == ["fact"]


def test_fact_is_saved_edited_restored_and_deleted(online: Run) -> None:
    options = ["--session", "s1", "--expires-in-days", "9", "--metadata", '{"ticket": 7}']
    saved = Memory.model_validate(online("facts", "save", "Anna leads.", *options, "--json").json)
    assert (saved.session_id, saved.metadata) == ("s1", {"ticket": 7})
    assert saved.expires_at is not None
    edited = Memory.model_validate(online("facts", "edit", saved.id, "--text", "Boris leads.", "--json").json)
    history = FactHistory.model_validate(online("facts", "history", edited.id, "--json").json)
    assert [version.text for version in history.versions] == ["Anna leads.", "Boris leads."]
    assert "now" in online("facts", "history", edited.id).out
    assert Memory.model_validate(online("facts", "restore", saved.id, "--json").json).text == "Anna leads."
    assert Memory.model_validate(online("facts", "edit", saved.id, "--pinned", "--json").json).pinned
    assert "pinned" in online("facts", "show", saved.id).out
    assert "erased" in online("facts", "delete", saved.id).out
    gone = online("facts", "show", saved.id)
    assert (gone.code, gone.out, gone.err) == (1, "", "error: no such fact\n")


@pytest.mark.parametrize("metadata", ["{", "[1]"])
def test_metadata_must_be_an_object(online: Run, metadata: str) -> None:
    refused = online("facts", "save", "x", "--metadata", metadata)
    assert refused.code == 2
    assert refused.err.startswith("error: --metadata ")


def test_edit_without_a_change_is_refused(online: Run) -> None:
    assert online("facts", "edit", "0" * 32).code == 2


def test_sessions_are_read_and_ended(online: Run) -> None:
    online("write", "s1", SAID)
    online("write", "s1", "And another.")
    (session,) = SessionPage.model_validate(online("sessions", "list", "--json").json).sessions
    assert (session.session_id, session.turns) == ("s1", 2)
    assert "s1" in online("sessions", "list").out
    shown = online("sessions", "turns", "s1", "--limit", "1").out
    assert SAID in shown
    assert "More: --from 2" in shown
    assert "And another." in online("sessions", "turns", "s1", "--from", "2").out
    assert DigestPage.model_validate(online("sessions", "digests", "s1", "--json").json).digests == []
    ended = SessionStatus.model_validate(online("sessions", "end", "s1", "--wait", "30", "--json").json)
    assert (ended.state, ended.indexed_upto) == ("idle", 2)
    assert "indexed" in online("sessions", "end", "s1").out


def test_status_shows_service_identity_and_session(online: Run, served: str) -> None:
    online("write", "s1", SAID)
    found = Status.model_validate(online("status", "s1", "--json").json)
    assert (found.url, found.health.status, found.identity.agent) == (served, "ok", "local")
    assert found.session is not None
    assert found.session.last_seq == 1
    assert "agent crew" in online("status", "--agent", "crew").out
    assert "indexed" in online("status", "s1").out


def test_forget_shows_counts_and_asks_for_confirmation(online: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    online("write", "s1", SAID)
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    refused = online("forget", "--session", "s1", "--json")
    assert (refused.code, refused.out) == (1, "")
    assert "would be erased" in refused.err
    assert "error: not confirmed" in refused.err
    assert ForgetReceipt.model_validate(online("forget", "--session", "s1", "--dry-run", "--json").json).dry_run
    assert SAID in online("list").out
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    receipt = ForgetReceipt.model_validate(online("forget", "--session", "s1", "--json").json)
    assert (receipt.dry_run, receipt.counts["turns"]) == (False, 1)
    assert online("list").out == "No results.\n"


def test_every_selector_of_forget_works(online: Run) -> None:
    online("write", "s1", "from a tool", "--role", "tool", "--name", "web_search")
    saved = Memory.model_validate(online("facts", "save", "x", "--json").json)
    source = ["--source", "tool", "web_search", "--since", "2000-01-01"]
    by_source = ForgetReceipt.model_validate(online("forget", *source, "--yes", "--json").json)
    assert by_source.counts["turns"] == 1
    by_fact = ForgetReceipt.model_validate(online("forget", "--memory", saved.id, "--sources", "--yes", "--json").json)
    assert by_fact.counts["facts"] == 1
    assert "receipt" in online("forget", "--level", "agent", "-y").out


def test_forget_requires_exactly_one_selector(online: Run) -> None:
    refused = online("forget", "--level", "agent", "--session", "s1", "--yes")
    assert refused.code == 2
    assert refused.err.startswith("error: request: name exactly one of")
    assert refused.err.count("\n") == 1


def test_escape_sequences_in_memory_do_not_reach_the_terminal(online: Run) -> None:
    online("write", "s1", "\x1b]0;owned\x07 [bold]plain[/bold]", "--name", "\x1b[31mred")
    shown = online("recall", "plain").out
    assert "\x1b" not in shown
    assert "[bold]plain[/bold]" in shown


def test_flags_override_the_environment(online: Run, served: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THREEFOLD_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("THREEFOLD_USER", "somebody else")
    assert online("write", "s1", SAID, "--url", served, "--user", "flagged", "--agent", "a").code == 0
    with MemoryClient(served, user="flagged", agent="a") as memory:
        assert memory.turns("s1").turns[0].content == SAID


def test_missing_service_is_reported_with_the_next_step(run: Run) -> None:
    refused = run("recall", "x", "--url", "http://127.0.0.1:1")
    assert refused.code == 1
    assert "`threefold serve`" in refused.err
    assert refused.err.count("\n") == 1


def test_invalid_url_is_a_usage_error(run: Run) -> None:
    refused = run("recall", "x", "--url", "127.0.0.1:8181")
    assert refused.code == 2
    assert refused.err.startswith("error: url must be an http:// or https:// URL")


def test_level_above_the_ceiling_is_refused(online: Run) -> None:
    refused = online("recall", "x", "--level", "user")
    assert (refused.code, refused.out) == (1, "")
    assert "ceiling" in refused.err
