"""The prompts of a workload as requests: token ids for completions, made up words for chats.

What a turn puts out becomes part of later prompts where the trace says so: its token ids where the server tells them,
made up ones of the asked length where it does not; in a chat, its text.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import orjson

from engine.recording.client.answer import Answer
from engine.traces.content import TokenIds, json_ids, prompt_digest, token_ids
from engine.traces.prompts import PlayPrompts, TokenSource
from engine.workload.live import LiveConversation, LivePlay

_LIST = (
    "time year way day thing man world life hand part child eye place work week case point company number group "
    "problem fact state house water room book home door road form line end area money story month lot right study "
    "word side kind head power land name body back face level car city best game price view team air field night "
    "step plan"
)
WORDS = tuple(_LIST.split())
"""Words that are one token in most vocabularies."""


@dataclass(frozen=True)
class Prompt:
    """What is asked: the fields of the request's body that hold it, its digest, and its tokens where they are known."""

    fields: dict[str, Any]
    digest: str
    tokens: int | None


class TokenPrompts:
    """Prompts as token ids, of plays in progress. Without ``own_outputs`` outputs in prompts are made up."""

    def __init__(self, source: TokenSource, own_outputs: bool) -> None:
        self._source = source
        self._own = own_outputs
        self._plays: dict[int, PlayPrompts] = {}
        self._outputs: dict[int, dict[tuple[str, int], TokenIds]] = {}  # by number of the play

    def of(self, talk: LiveConversation, turn: int) -> Prompt:
        """The prompt of a turn of a conversation in progress."""
        ids = self._prompts(talk.live).of(talk.conversation.conversation_id, turn)
        assert ids is not None  # outputs that are not known are made up
        text = json_ids(ids)
        return Prompt({"prompt": orjson.Fragment(text)}, prompt_digest(text), len(ids))

    def ended(self, talk: LiveConversation, turn: int, answer: Answer) -> None:
        """Keep what a turn put out for the prompts that go on from it."""
        if self._own and answer.status == "ok" and 0 < len(answer.output_ids) == answer.output_tokens:
            outputs = self._outputs.setdefault(talk.live.number, {})
            outputs[talk.conversation.conversation_id, turn] = token_ids(answer.output_ids)

    def over(self, live: LivePlay) -> None:
        """Forget a play that nothing is sent of any more."""
        self._plays.pop(live.number, None)
        self._outputs.pop(live.number, None)

    def _prompts(self, live: LivePlay) -> PlayPrompts:
        number = live.number
        if number not in self._plays:
            outputs = self._outputs.setdefault(number, {})
            self._plays[number] = PlayPrompts(
                live.play, self._source, lambda name, turn: outputs.get((name, turn)), True, live.content
            )
        return self._plays[number]


class ChatPrompts:
    """Prompts as messages: what a turn adds is the user's, what was answered the assistant's.

    A trace says lengths and what is equal, no text: each of its tokens becomes one word, equal where tokens are. So
    lengths are about right; what the server counted is its own.
    """

    def __init__(self, source: TokenSource) -> None:
        self._source = source
        self._texts: dict[int, dict[tuple[str, int], str]] = {}  # by number of the play

    def of(self, talk: LiveConversation, turn: int) -> Prompt:
        """The prompt of a turn of a conversation in progress."""
        messages = self._messages(talk, turn)
        text = orjson.dumps(messages)
        return Prompt({"messages": orjson.Fragment(text)}, hashlib.sha256(text).hexdigest()[:16], None)

    def ended(self, talk: LiveConversation, turn: int, answer: Answer) -> None:
        """Keep what a turn answered."""
        texts = self._texts.setdefault(talk.live.number, {})
        texts[talk.conversation.conversation_id, turn] = "".join(answer.text)

    def over(self, live: LivePlay) -> None:
        """Forget a play that nothing is sent of any more."""
        self._texts.pop(live.number, None)

    def _messages(self, talk: LiveConversation, turn: int) -> list[dict[str, str]]:
        conversation, live = talk.conversation, talk.live
        if conversation.turns[turn].hash_ids is not None:
            prompts = PlayPrompts(live.play, self._source, lambda name, turn: None, True, live.content)
            ids = prompts.of(conversation.conversation_id, turn)
            assert ids is not None
            return [{"role": "user", "content": _words(ids)}]
        messages: list[dict[str, str]] = []
        if conversation.mode == "fork" and talk.parent is not None and conversation.after_turn is not None:
            messages = self._messages(talk.parent, conversation.after_turn)
            messages.append(self._said(talk.parent, conversation.after_turn))
        for at in range(turn + 1):
            added = [self._source.ids(s.content, s.tokens, live.content) for s in conversation.turns[at].new_input]
            messages.append({"role": "user", "content": " ".join(map(_words, added))})
            if at < turn:
                messages.append(self._said(talk, at))
        return messages

    def _said(self, talk: LiveConversation, turn: int) -> dict[str, str]:
        text = self._texts.get(talk.live.number, {}).get((talk.conversation.conversation_id, turn))
        return {"role": "assistant", "content": text or WORDS[turn % len(WORDS)]}


def _words(ids: TokenIds) -> str:
    return " ".join(WORDS[one % len(WORDS)] for one in ids.tolist())
