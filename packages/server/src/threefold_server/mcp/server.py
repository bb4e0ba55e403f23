"""One connection of an MCP client: its tools, prompts and resources, called under the session's policy."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any, Self, TypeVar
from urllib.parse import quote, unquote

from mcp import types
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import McpError
from pydantic import AnyUrl

from threefold import AsyncMemorySession, calls
from threefold.contract import DigestView, WhoAmI
from threefold.errors import Conflict, InvalidRequest, NotFound, ThreefoldError, TooLarge
from threefold.policy import is_refusal
from threefold.render import digest_lines, join_block, memory_line
from threefold.tools.answers import failure_text, wrong_call
from threefold.tools.definitions import PROFILES, ProfileName, Tool, find_action, profile_tools, tools_hint

Request = TypeVar("Request")

VERSION = version("threefold-server")  # importing `whoami` would load the whole service

WRONG_CALL = (InvalidRequest, NotFound, Conflict, TooLarge)
"""Errors that a model can correct by another call, so they are reported as tool errors.

An outage is not one of them: frameworks end a run whose tool keeps failing, and memory must not stop an agent.
"""

NO_SUCH_RESOURCE = -32002  # a code of the protocol that the library does not name
DIGEST_URI = "threefold://sessions/{id}/digest"
FACT_URI = "threefold://facts/{id}"


@dataclass(frozen=True)
class Offer:
    """The tools that a connection offers. It restricts what the identity may do and never extends it."""

    profile: ProfileName = "threefold"
    names: tuple[str, ...] | None = None
    read_only: bool = False

    @classmethod
    def of(cls, profile: ProfileName, names: str | None, read_only: bool) -> Self:
        """Return the offer of a profile and comma-separated tool names.

        Raises:
            InvalidRequest: The offer would contain no tool.
        """
        chosen = None if names is None else tuple(name.strip() for name in names.split(",") if name.strip())
        offer = cls(profile, chosen, read_only)
        if not offer.tools():
            raise InvalidRequest("tools: no tool is left after `tools` and `read_only`")
        return offer

    def tools(self, whoami: WhoAmI | None = None) -> list[Tool]:
        """Return the tools, with the levels that this identity may use."""
        return profile_tools(self.profile, whoami, self.names, read_only=self.read_only)

    @property
    def prompts(self) -> Mapping[str, Tool]:
        """The prompts of the profile."""
        return PROFILES[self.profile].prompts


class Connection:
    """Answers one MCP client. Its identity is the session's and does not depend on what a model sends."""

    def __init__(self, session: AsyncMemorySession, offer: Offer, whoami: WhoAmI | None = None) -> None:
        self.session = session
        self.offer = offer
        self._whoami: WhoAmI | None = None
        if whoami is not None:
            self.learn(whoami)

    async def whoami(self) -> WhoAmI:
        """Return the verified identity. Ask the service until it has answered once, with the deadline of a recall.

        Raises:
            ThreefoldError: The service did not answer, or refused the identity.
        """
        return self._whoami or self.learn(await self.session.send(replace(calls.whoami(), deadline="recall")))

    def learn(self, whoami: WhoAmI) -> WhoAmI:
        """Keep the service's answer about this identity, and adopt the policy that it sets for clients."""
        self.session.policy.remember_store(self.session.key.origin, whoami.store)
        self._whoami = whoami
        return whoami

    def server(self) -> Server[Any, Any]:
        """Return an MCP server that passes every request to this connection."""
        server: Server[Any, Any] = Server("threefold", VERSION, instructions=tools_hint(self.offer.tools()))
        server.request_handlers |= {
            types.ListToolsRequest: _answering(self.list_tools),
            types.CallToolRequest: _answering(self.call_tool),
            types.ListPromptsRequest: _answering(self.list_prompts),
            types.GetPromptRequest: _answering(self.get_prompt),
            types.ListResourcesRequest: _answering(self.list_resources),
            types.ListResourceTemplatesRequest: _answering(self.list_resource_templates),
            types.ReadResourceRequest: _answering(self.read_resource),
        }
        return server

    async def list_tools(self, _: types.ListToolsRequest) -> types.ListToolsResult:
        """Return every tool of the offer, with the levels up to the ceiling, or up to `agent` in an outage."""
        try:
            whoami = await self.whoami()
        except ThreefoldError:
            whoami = None
        return types.ListToolsResult(tools=[_tool(tool) for tool in self.offer.tools(whoami)])

    async def call_tool(self, request: types.CallToolRequest) -> types.CallToolResult:
        """Call a tool. Every outcome, failures included, becomes a text from which a model can go on."""
        name, arguments = request.params.name, request.params.arguments or {}
        try:
            action = find_action(name, arguments, self.offer.tools(await self.whoami()))
            return _text_result(action if isinstance(action, str) else action.text(await action.run(self.session)))
        except InvalidRequest as error:
            return _text_result(wrong_call(error), is_error=True)
        except ThreefoldError as error:
            strict = self.session.failure_mode == "strict"
            return _text_result(failure_text(error), is_error=strict or isinstance(error, WRONG_CALL))

    async def list_prompts(self, _: types.ListPromptsRequest) -> types.ListPromptsResult:
        """Return every prompt of the profile."""
        return types.ListPromptsResult(prompts=[_prompt(prompt) for prompt in self.offer.prompts.values()])

    async def get_prompt(self, request: types.GetPromptRequest) -> types.GetPromptResult:
        """Return the result of a prompt's call as a user message."""
        name, arguments = request.params.name, request.params.arguments or {}
        with _protocol_errors():
            action = find_action(name, arguments, list(self.offer.prompts.values()))
            text = action if isinstance(action, str) else action.text(await action.run(self.session))
        message = types.PromptMessage(role="user", content=types.TextContent(type="text", text=text))
        return types.GetPromptResult(description=self.offer.prompts[name].description, messages=[message])

    async def list_resources(self, _: types.ListResourcesRequest) -> types.ListResourcesResult:
        """Return the only resource with a fixed name: the digest of this session."""
        uri = DIGEST_URI.format(id=quote(self.session.session_id, safe=""))
        about = "The summary of this session so far, without details. A short session has no digest."
        return types.ListResourcesResult(
            resources=[types.Resource(uri=AnyUrl(uri), name="digest", description=about, mimeType="text/plain")]
        )

    async def list_resource_templates(self, _: types.ListResourceTemplatesRequest) -> types.ListResourceTemplatesResult:
        """Return the templates of digests and facts."""
        digest = types.ResourceTemplate(
            uriTemplate=DIGEST_URI, name="digest", description="The digest of a session.", mimeType="text/plain"
        )
        fact = types.ResourceTemplate(
            uriTemplate=FACT_URI, name="fact", description="One fact, by its id.", mimeType="text/plain"
        )
        return types.ListResourceTemplatesResult(resourceTemplates=[digest, fact])

    async def read_resource(self, request: types.ReadResourceRequest) -> types.ReadResourceResult:
        """Return the text of one resource, fenced like all recalled text."""
        uri = request.params.uri
        with _protocol_errors():
            text = await self._text_at(str(uri))
        return types.ReadResourceResult(
            contents=[types.TextResourceContents(uri=uri, mimeType="text/plain", text=text)]
        )

    async def _text_at(self, uri: str) -> str:
        if digest_of := re.fullmatch("threefold://sessions/(.+)/digest", uri):
            found = (await self.session.send(calls.digests(unquote(digest_of[1])))).digests
            if not found:
                raise NotFound("this session has no digest yet")
            return join_block(digest_lines(DigestView.model_validate(found[0].model_dump())), [], [])
        if fact := re.fullmatch("threefold://facts/(.+)", uri):
            return join_block([], [memory_line(await self.session.send(calls.get_fact(unquote(fact[1]))))], [])
        raise NotFound(f"no such resource; use {DIGEST_URI} or {FACT_URI}")


@contextmanager
def _protocol_errors() -> Generator[None]:
    """Raise failures as errors of the protocol: prompts and resources have no error text of their own."""
    try:
        yield
    except NotFound as error:
        raise McpError(types.ErrorData(code=NO_SUCH_RESOURCE, message=error.message)) from error
    except ThreefoldError as error:
        code = types.INVALID_PARAMS if is_refusal(error) else types.INTERNAL_ERROR
        text = wrong_call(error) if isinstance(error, InvalidRequest) else failure_text(error)
        raise McpError(types.ErrorData(code=code, message=text)) from error


def _answering(
    handler: Callable[[Request], Awaitable[types.ServerResultType]],
) -> Callable[[Request], Awaitable[types.ServerResult]]:
    """Return a handler for the library. Its decorators are not used: they cache one client's tools for the next."""

    async def answer(request: Request) -> types.ServerResult:
        return types.ServerResult(await handler(request))

    return answer


def _text_result(text: str, *, is_error: bool = False) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)], isError=is_error)


def _tool(tool: Tool) -> types.Tool:
    hints = types.ToolAnnotations(
        readOnlyHint=tool.effect == "reads", destructiveHint=tool.effect == "erases", openWorldHint=False
    )
    return types.Tool(name=tool.name, description=tool.description, inputSchema=tool.parameters(), annotations=hints)


def _prompt(prompt: Tool) -> types.Prompt:
    schema = prompt.parameters()
    required = schema.get("required", [])
    arguments = [
        types.PromptArgument(name=name, description=about["description"], required=name in required)
        for name, about in schema["properties"].items()
    ]
    return types.Prompt(name=prompt.name, description=prompt.description, arguments=arguments)
