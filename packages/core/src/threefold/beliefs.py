"""`client.beliefs` of both clients: beliefs, and the experiments that judge them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from threefold import belief_calls
from threefold.belief_calls import BeliefChanges, BeliefFilter, BeliefOptions
from threefold.contract import (
    Belief,
    BeliefHistory,
    BeliefPage,
    ClosedExperiment,
    Experiment,
    ForgetReceipt,
    Judgement,
    Reverification,
)
from threefold.contract.common import NotedBy
from threefold.threads import AsyncSender, Sender


class Beliefs:
    """The operations on beliefs of this user. Calls that write are not retried once sent."""

    def __init__(self, client: Sender) -> None:
        self._client = client

    def record(self, statement: str, **options: Unpack[BeliefOptions]) -> Belief:
        """Record a belief. Its verdict is pending until an experiment is closed.

        Args:
            statement: What is believed, 1 to 10,000 characters.
            **options: `falsification` (what would show that it is wrong; needed unless `kind` is `assumption`),
                `confidence` (0 to 1, default 0.5), `kind` (`hypothesis` or `assumption`), `support` (sets of ids of
                beliefs, each sufficient by itself; default: none), `context` (where it applies), `session_id`,
                `visibility` (default `user`), `noted_by` (`assistant` or `tool`; it lowers the trust).

        Returns:
            The belief with its id and standing.

        Raises:
            InvalidRequest: A field is wrong, or a support does not exist, is not visible to this identity, or has
                fewer readers than the new belief.
        """
        return self._client.send(belief_calls.record(statement, **options))

    def get(self, belief_id: str) -> Belief:
        """Return one belief.

        Args:
            belief_id: The id of the belief.

        Returns:
            The belief with its verdict, its standing, and the reasons if it is unsupported.

        Raises:
            NotFound: There is no such belief, or it is not visible to this identity.
        """
        return self._client.send(belief_calls.get(belief_id))

    def update(self, belief_id: str, revision: int, **changes: Unpack[BeliefChanges]) -> Belief:
        """Change a belief at the revision that was read.

        Args:
            belief_id: The id of the belief.
            revision: The revision that was read.
            **changes: `statement` and `falsification` (only while the verdict is pending), `confidence` (0 to 1).

        Returns:
            The changed belief with its new revision.

        Raises:
            RevisionConflict: The belief has another revision; read it again.
            Conflict: The statement or the falsification was judged already.
            NotFound: There is no such belief, or it is not visible to this identity.
        """
        return self._client.send(belief_calls.update(belief_id, revision, **changes))

    def delete(self, belief_id: str) -> ForgetReceipt:
        """Erase one belief with its history and experiments. Beliefs that rest on it become unsupported.

        Args:
            belief_id: The id of the belief.

        Returns:
            The receipt; `counts["unsupported_beliefs"]` is the number of beliefs that became unsupported.

        Raises:
            NotFound: There is no such belief, or it is not visible to this identity.
        """
        return self._client.send(belief_calls.delete(belief_id))

    def list(self, **wanted: Unpack[BeliefFilter]) -> BeliefPage:
        """Return one page of the beliefs that are visible at a level, the newest first.

        Args:
            **wanted: `verdict`, `standing`, `as_of` (the beliefs as they were at this moment; needs an offset), `level`
                (default: the lower of `agent` and the ceiling), `session_id` (needed at level `session`), `cursor` (of
                the previous page), `limit` (0 to 1,000, default 50).

        Returns:
            The beliefs, and `next_cursor`, which is None on the last page.

        Raises:
            InvalidRequest: A field is wrong, or the cursor is not one that this call returned.
            Forbidden: The level is above the ceiling of this identity.
        """
        return self._client.send(belief_calls.list_beliefs(**wanted))

    def history(self, belief_id: str) -> BeliefHistory:
        """Return every change of a belief, oldest first.

        Args:
            belief_id: The id of the belief.

        Returns:
            The events, each with the state after the change and its cause.

        Raises:
            NotFound: There is no such belief, or it is not visible to this identity.
        """
        return self._client.send(belief_calls.history(belief_id))

    def dependents(self, belief_id: str) -> BeliefPage:
        """Return the beliefs that rest on a belief, directly or through others.

        Args:
            belief_id: The id of the belief.

        Returns:
            All of them that are visible to this identity, in one page, the oldest first.

        Raises:
            NotFound: There is no such belief, or it is not visible to this identity.
        """
        return self._client.send(belief_calls.dependents(belief_id))

    def open_experiment(self, belief_id: str, *, plan: str | None = None) -> Experiment:
        """Start an attempt to judge a belief.

        Args:
            belief_id: The id of the belief.
            plan: How it will be tested, at most 10,000 characters.

        Returns:
            The experiment, with all earlier attempts that were closed.

        Raises:
            Conflict: The belief is falsified; use `reverify`.
            NotFound: There is no such belief, or it is not visible to this identity.
        """
        return self._client.send(belief_calls.open_experiment(belief_id, plan))

    def close_experiment(
        self,
        experiment_id: str,
        verdict: Judgement,
        justification: str,
        *,
        evidence: Sequence[str] = (),
        noted_by: NotedBy | None = None,
    ) -> ClosedExperiment:
        """Give the verdict of an experiment, once.

        Args:
            experiment_id: The id of the experiment.
            verdict: `confirmed` or `falsified`.
            justification: Why, 1 to 10,000 characters.
            evidence: At most 100 texts, such as links or excerpts of a log.
            noted_by: `assistant` or `tool` if the user did not judge it.

        Returns:
            The experiment, and the beliefs that became unsupported or supported again.

        Raises:
            Conflict: The experiment was closed before.
            NotFound: There is no such experiment, or its belief is not visible to this identity.
        """
        return self._client.send(
            belief_calls.close_experiment(experiment_id, verdict, justification, evidence, noted_by)
        )

    def reverify(self, belief_id: str, reason: str, *, changed: str | None = None) -> Reverification:
        """Start another attempt at a falsified belief. The belief stays falsified until the attempt confirms it.

        Args:
            belief_id: The id of the belief.
            reason: Why it is tried again, 1 to 10,000 characters.
            changed: What is different from the earlier attempts.

        Returns:
            The experiment with all earlier attempts, and a clearance for one check of an approach.

        Raises:
            Conflict: The belief is not falsified.
            NotFound: There is no such belief, or it is not visible to this identity.
        """
        return self._client.send(belief_calls.reverify(belief_id, reason, changed))


class AsyncBeliefs:
    """The operations on beliefs of this user. Calls that write are not retried once sent."""

    def __init__(self, client: AsyncSender) -> None:
        self._client = client

    async def record(self, statement: str, **options: Unpack[BeliefOptions]) -> Belief:
        """Record a belief. Its verdict is pending until an experiment is closed.

        Args:
            statement: What is believed, 1 to 10,000 characters.
            **options: `falsification` (what would show that it is wrong; needed unless `kind` is `assumption`),
                `confidence` (0 to 1, default 0.5), `kind` (`hypothesis` or `assumption`), `support` (sets of ids of
                beliefs, each sufficient by itself; default: none), `context` (where it applies), `session_id`,
                `visibility` (default `user`), `noted_by` (`assistant` or `tool`; it lowers the trust).

        Returns:
            The belief with its id and standing.

        Raises:
            InvalidRequest: A field is wrong, or a support does not exist, is not visible to this identity, or has
                fewer readers than the new belief.
        """
        return await self._client.send(belief_calls.record(statement, **options))

    async def get(self, belief_id: str) -> Belief:
        """Return one belief.

        Args:
            belief_id: The id of the belief.

        Returns:
            The belief with its verdict, its standing, and the reasons if it is unsupported.

        Raises:
            NotFound: There is no such belief, or it is not visible to this identity.
        """
        return await self._client.send(belief_calls.get(belief_id))

    async def update(self, belief_id: str, revision: int, **changes: Unpack[BeliefChanges]) -> Belief:
        """Change a belief at the revision that was read.

        Args:
            belief_id: The id of the belief.
            revision: The revision that was read.
            **changes: `statement` and `falsification` (only while the verdict is pending), `confidence` (0 to 1).

        Returns:
            The changed belief with its new revision.

        Raises:
            RevisionConflict: The belief has another revision; read it again.
            Conflict: The statement or the falsification was judged already.
            NotFound: There is no such belief, or it is not visible to this identity.
        """
        return await self._client.send(belief_calls.update(belief_id, revision, **changes))

    async def delete(self, belief_id: str) -> ForgetReceipt:
        """Erase one belief with its history and experiments. Beliefs that rest on it become unsupported.

        Args:
            belief_id: The id of the belief.

        Returns:
            The receipt; `counts["unsupported_beliefs"]` is the number of beliefs that became unsupported.

        Raises:
            NotFound: There is no such belief, or it is not visible to this identity.
        """
        return await self._client.send(belief_calls.delete(belief_id))

    async def list(self, **wanted: Unpack[BeliefFilter]) -> BeliefPage:
        """Return one page of the beliefs that are visible at a level, the newest first.

        Args:
            **wanted: `verdict`, `standing`, `as_of` (the beliefs as they were at this moment; needs an offset), `level`
                (default: the lower of `agent` and the ceiling), `session_id` (needed at level `session`), `cursor` (of
                the previous page), `limit` (0 to 1,000, default 50).

        Returns:
            The beliefs, and `next_cursor`, which is None on the last page.

        Raises:
            InvalidRequest: A field is wrong, or the cursor is not one that this call returned.
            Forbidden: The level is above the ceiling of this identity.
        """
        return await self._client.send(belief_calls.list_beliefs(**wanted))

    async def history(self, belief_id: str) -> BeliefHistory:
        """Return every change of a belief, oldest first.

        Args:
            belief_id: The id of the belief.

        Returns:
            The events, each with the state after the change and its cause.

        Raises:
            NotFound: There is no such belief, or it is not visible to this identity.
        """
        return await self._client.send(belief_calls.history(belief_id))

    async def dependents(self, belief_id: str) -> BeliefPage:
        """Return the beliefs that rest on a belief, directly or through others.

        Args:
            belief_id: The id of the belief.

        Returns:
            All of them that are visible to this identity, in one page, the oldest first.

        Raises:
            NotFound: There is no such belief, or it is not visible to this identity.
        """
        return await self._client.send(belief_calls.dependents(belief_id))

    async def open_experiment(self, belief_id: str, *, plan: str | None = None) -> Experiment:
        """Start an attempt to judge a belief.

        Args:
            belief_id: The id of the belief.
            plan: How it will be tested, at most 10,000 characters.

        Returns:
            The experiment, with all earlier attempts that were closed.

        Raises:
            Conflict: The belief is falsified; use `reverify`.
            NotFound: There is no such belief, or it is not visible to this identity.
        """
        return await self._client.send(belief_calls.open_experiment(belief_id, plan))

    async def close_experiment(
        self,
        experiment_id: str,
        verdict: Judgement,
        justification: str,
        *,
        evidence: Sequence[str] = (),
        noted_by: NotedBy | None = None,
    ) -> ClosedExperiment:
        """Give the verdict of an experiment, once.

        Args:
            experiment_id: The id of the experiment.
            verdict: `confirmed` or `falsified`.
            justification: Why, 1 to 10,000 characters.
            evidence: At most 100 texts, such as links or excerpts of a log.
            noted_by: `assistant` or `tool` if the user did not judge it.

        Returns:
            The experiment, and the beliefs that became unsupported or supported again.

        Raises:
            Conflict: The experiment was closed before.
            NotFound: There is no such experiment, or its belief is not visible to this identity.
        """
        return await self._client.send(
            belief_calls.close_experiment(experiment_id, verdict, justification, evidence, noted_by)
        )

    async def reverify(self, belief_id: str, reason: str, *, changed: str | None = None) -> Reverification:
        """Start another attempt at a falsified belief. The belief stays falsified until the attempt confirms it.

        Args:
            belief_id: The id of the belief.
            reason: Why it is tried again, 1 to 10,000 characters.
            changed: What is different from the earlier attempts.

        Returns:
            The experiment with all earlier attempts, and a clearance for one check of an approach.

        Raises:
            Conflict: The belief is not falsified.
            NotFound: There is no such belief, or it is not visible to this identity.
        """
        return await self._client.send(belief_calls.reverify(belief_id, reason, changed))
