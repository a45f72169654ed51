"""What a run with attached streams is asked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from engine.bundle import Check
from engine.identity import Identity
from engine.importers.attach.client_side import ClientSide, whole
from engine.importers.attach.engine_side import EngineSide

NAMED = 5


def checks_of(
    client: ClientSide, engine: EngineSide, joined: Mapping[str, str], offset_ns: int, theirs: Identity
) -> Iterator[Check]:
    """Who was seen on both sides, whether the spans cover each other, whether the tokens add up."""
    yield _spans(client, engine, offset_ns)
    yield _identities(client.bundle.identity, theirs)
    if not engine.names_requests:
        words = "the streams do not name requests"
        yield from (Check(name, "unknown", words) for name in ("requests_seen", "requests_known", "token_sums"))
        return
    sent = [name for name, row in client.requests.items() if row["status"] == "ok"]
    seen = set(joined.values())
    missing = [name for name in sent if name not in seen]
    yield Check(
        "requests_seen",
        "fail" if missing else "pass",
        f"{len(sent) - len(missing)} of {len(sent)} successful requests are among those that the engine served"
        + _named(missing),
    )
    nobody = [name for name in dict.fromkeys((*engine.facts, *engine.served)) if name not in joined]
    yield Check(
        "requests_known",
        "fail" if nobody else "pass",
        f"{len(nobody)} requests of the engine belong to no request of the client{_named(nobody)}",
    )
    yield from _tokens(client, engine, joined, offset_ns)


def _spans(client: ClientSide, engine: EngineSide, offset_ns: int) -> Check:
    first, last = engine.first_ns + offset_ns, engine.last_ns + offset_ns
    sent = [row for row in client.requests.values() if row["dispatched_ns"] is not None]
    if not sent:
        return Check("streams_cover", "unknown", "no request has a time of dispatch")
    early = sum((row["last_visible_ns"] or row["end_ns"] or first) < first for row in sent)
    late = sum(row["dispatched_ns"] > last for row in sent)
    detail = (
        f"the streams span {first / 1e9:,.3f} to {last / 1e9:,.3f} s; {early} of {len(sent)} requests had ended before "
        f"that, {late} were dispatched after it"
    )
    return Check("streams_cover", "fail" if early or late else "pass", detail)


def _identities(ours: Identity, theirs: Identity) -> Check:
    differing = [
        f"{group}.{name} is {ours.value(group, name)!r} and {found.value!r}"
        for group, name, found in theirs
        if ours.value(group, name) is not None and found.value is not None and ours.value(group, name) != found.value
    ]
    words = "; ".join(differing[:NAMED]) + ("; and more" if len(differing) > NAMED else "")
    return Check("identities_agree", "fail" if differing else "pass", words)


def _tokens(client: ClientSide, engine: EngineSide, joined: Mapping[str, str], offset_ns: int) -> Iterator[Check]:
    wrong, told, looked, asked = [], [], 0, 0
    for engine_id, client_id in joined.items():
        row, served = client.requests[client_id], engine.served.get(engine_id)
        if served is None or row["status"] != "ok" or not whole(client, engine, engine_id, client_id, offset_ns):
            continue
        if row["cached_tokens"] is not None:
            asked += 1
            told += [client_id] if row["cached_tokens"] != served.cached_tokens else []
        if row["input_tokens"] is None or not row["output_tokens"]:
            continue
        looked += 1
        computed = served.scheduled_tokens - served.recomputed_tokens
        if computed != row["input_tokens"] - served.cached_tokens + row["output_tokens"] - 1:
            wrong.append(client_id)
    yield Check(
        "token_sums",
        "unknown" if not looked else "fail" if wrong else "pass",
        f"prompt - cached + outputs - 1 tokens were computed for {looked - len(wrong)} of {looked} requests"
        + _named(wrong),
    )
    yield Check(
        "cached_tokens_agree",
        "unknown" if not asked else "fail" if told else "pass",
        f"the client was told the cached tokens of the first pass for {asked - len(told)} of {asked} requests"
        + _named(told),
    )


def _named(names: list[str]) -> str:
    return f": {', '.join(names[:NAMED])}{', and more' if len(names) > NAMED else ''}" if names else ""
