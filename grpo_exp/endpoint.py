"""Questions to a chat model behind an OpenAI-compatible endpoint: several at a time, tried again, within a budget.

The key comes from an environment variable, goes into a header and nowhere else: what a server says, which may quote the key, is
freed of it before anyone sees it. Redirects are not followed, so that no other server gets the key.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import urlsplit

from grpo_exp.batch import Message
from grpo_exp.errors import ConfigError, InputError, RewardError

T = TypeVar("T")
LARGEST_REPLY = 1_000_000  # bytes
LONGEST_WAIT = 60.0  # seconds between two tries
_FINAL = range(300, 500)  # statuses that another try does not change, but for these:
_PASSING = (408, 409, 425, 429)


class Unusable(Exception):
    """A reply that is not what was asked for; asked again."""


@dataclass
class Budget:
    """What may be spent and has been. Tokens are those that the server reports, else a third of the characters."""

    calls: int | None
    tokens: int | None
    spent: dict[str, int] = field(default_factory=lambda: {"calls": 0, "tokens": 0})

    def take(self) -> None:
        """Count a call that is about to be made.

        Raises:
            RewardError: there is nothing left for it.
        """
        for name, limit in (("calls", self.calls), ("tokens", self.tokens)):
            if limit is not None and self.spent[name] >= limit:
                raise RewardError(f"the budget of max_{name}={limit} is used up after {self.spent['calls']} calls")
        self.spent["calls"] += 1


@dataclass
class Endpoint:
    """Where the model is and how patiently it is asked.

    Attributes:
        base_url: such as http://127.0.0.1:8000/v1.
        model: its name there.
        key_variable: the environment variable with the key; None for none.
        seconds: longest time of one call, whatever the server does.
        retries: further tries of a call that fails for a reason that may pass.
        wait: seconds before the first of them, doubled for each.
        at_once: calls at a time.
    """

    base_url: str
    model: str
    key_variable: str | None
    seconds: float
    retries: int
    wait: float
    at_once: int

    def __post_init__(self) -> None:
        parts = urlsplit(self.base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ConfigError(f"base_url={self.base_url!r}: expected an address such as http://127.0.0.1:8000/v1")
        if parts.username or parts.password:
            raise ConfigError("base_url: no user or password belongs into it; key_variable names the variable with the key")
        self._key = "" if self.key_variable is None else os.environ.get(self.key_variable, "").strip()
        if self.key_variable is not None and not (self._key and self._key.isascii() and self._key.isprintable()):
            raise ConfigError(
                f"key_variable={self.key_variable!r}: the environment variable is not set, or holds no key; "
                f"export {self.key_variable}=..., or set key_variable=null where the server wants none"
            )

    def ask(
        self, chats: list[list[Message]], accept: Callable[[str], T], budget: Budget, options: dict[str, Any]
    ) -> list[T | RewardError]:
        """What `accept` makes of the reply to each chat; a RewardError for a chat that got none.

        `accept` raises Unusable for a reply that it has no use for. `options` go into each request, such as temperature.
        """
        return asyncio.run(self._all(chats, accept, budget, options))

    async def _all(
        self, chats: list[list[Message]], accept: Callable[[str], T], budget: Budget, options: dict[str, Any]
    ) -> list[T | RewardError]:
        try:
            import httpx
        except ImportError as error:
            raise InputError("reward=judge needs httpx: pip install 'grpo-exp[judge]'") from error

        places = asyncio.Semaphore(self.at_once)
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        async with httpx.AsyncClient(timeout=self.seconds, headers=headers, follow_redirects=False) as client:

            async def one(chat: list[Message]) -> T | RewardError:
                async with places:
                    try:
                        return await self._patiently(client, chat, accept, budget, options)
                    except RewardError as error:
                        return RewardError(self.without_key(str(error)))

            return list(await asyncio.gather(*map(one, chats)))

    async def _patiently(
        self, client: Any, chat: list[Message], accept: Callable[[str], T], budget: Budget, options: dict[str, Any]
    ) -> T:
        """One answer, after several tries if need be."""
        import httpx

        where = f"{self.base_url} (model {self.model!r})"
        for attempt in range(self.retries + 1):
            budget.take()
            wait = self.wait * 2**attempt * random.uniform(0.8, 1.2)
            try:
                status, asked_to_wait, body = await asyncio.wait_for(self._post(client, chat, options), self.seconds)
                if status == 200:
                    return accept(_content(body, chat, budget))
                problem = f"status {status}: {body[:300].decode('utf-8', 'replace')}"
                if status in _FINAL and status not in _PASSING:
                    raise RewardError(f"{where} refused: {problem}")
                wait = max(wait, asked_to_wait)
            except Unusable as error:
                problem = str(error)
            except (asyncio.TimeoutError, httpx.TimeoutException):
                problem = f"no answer within {self.seconds:g} s"
            except httpx.HTTPError as error:
                problem = f"{type(error).__name__}: {error}"
            if attempt < self.retries:
                await asyncio.sleep(min(wait, LONGEST_WAIT))
        raise RewardError(f"{where} gave no usable answer in {self.retries + 1} tries; the last: {problem}")

    async def _post(self, client: Any, chat: list[Message], options: dict[str, Any]) -> tuple[int, float, bytes]:
        """Status, seconds that the server asks to wait, and body."""
        body = json.dumps({"model": self.model, "messages": chat, **options})  # ASCII: lone surrogates are escaped
        url = f"{self.base_url.rstrip('/')}/chat/completions"
        async with client.stream("POST", url, content=body, headers={"Content-Type": "application/json"}) as reply:
            received = b""
            async for part in reply.aiter_bytes():
                received += part
                if len(received) > LARGEST_REPLY:
                    raise Unusable(f"a reply of more than {LARGEST_REPLY} bytes")
            asked = reply.headers.get("retry-after", "")
            return reply.status_code, float(asked) if asked.isdecimal() and len(asked) < 6 else 0.0, received

    def without_key(self, text: str) -> str:
        """A text in which the key does not stand."""
        return text.replace(self._key, "<redacted>") if self._key else text


def _content(body: bytes, chat: list[Message], budget: Budget) -> str:
    """What the model said, its tokens counted.

    Raises:
        Unusable: the body is no answer of a chat model.
    """
    reply: Any = None
    try:
        reply = json.loads(body)
        text = reply["choices"][0]["message"]["content"]
    except (ValueError, LookupError, TypeError, RecursionError):
        text = None
    usage = reply.get("usage") if isinstance(reply, dict) else None
    used = usage.get("total_tokens") if isinstance(usage, dict) else None
    if not isinstance(used, int) or isinstance(used, bool) or used < 0:
        used = (sum(len(message["content"]) for message in chat) + len(body)) // 3
    budget.spent["tokens"] += used
    if not isinstance(text, str):
        raise Unusable(f"no answer of a chat model, but {body[:100]!r}")
    return text
