"""The ledger of hypotheses: what may follow what, and that nothing written is ever lost or changed."""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path
from urllib.parse import parse_qs

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dashboard.cli import main
from dashboard.hypotheses import FILE, read, record
from dashboard.hypotheses.rules import event_of, fold
from dashboard.hypotheses.text import bad_words, book_text, listed
from dashboard.view import View, from_link
from engine.errors import GapscopeError

RUN = "ample8-0123456789ab"
LINK = View("percentiles", {"m": RUN, "r": ["replay-0123456789ab"], "metric": "tpot"}).link("http://127.0.0.1:8501")
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def opened(store: Path, statement: str = "decode is priced too low") -> str:
    return record([store], "opened", statement=statement, prediction="the TPOT gap closes on rung 4", now=NOON).id


def lines(store: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in (store / FILE).read_text().splitlines()]


def test_a_hypothesis_goes_from_its_prediction_to_its_retraction(tmp_path: Path) -> None:
    own = opened(tmp_path)
    record([tmp_path], "evidence", own, link=LINK, text="TPOT is 9 % low")
    found = record([tmp_path], "supported", own, layer="timing", residual="the tail")
    assert (found.status, found.layer, found.residual) == ("supported", "timing", "the tail")
    found = record([tmp_path], "retracted", own[:4], text="the recording was warm")
    assert (found.status, found.reason, found.layer) == ("retracted", "the recording was warm", "timing")
    assert read([tmp_path]).hypotheses == {own: found}
    assert [row["event"] for row in lines(tmp_path)] == ["opened", "evidence", "supported", "retracted"]
    assert lines(tmp_path)[0] == {
        "id": own,
        "event": "opened",
        "time": "2026-03-01T12:00:00.000000Z",
        "statement": "decode is priced too low",
        "prediction": "the TPOT gap closes on rung 4",
    }
    assert [one.id for one in listed(read([tmp_path]))] == [own]  # a retracted one stays visible


def test_who_writes_waits_for_no_other_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two that write with their stores in opposite order would wait for each other for ever."""
    own = opened(tmp_path / "ours")
    flock = fcntl.flock
    monkeypatch.setattr(fcntl, "flock", lambda file, how: flock(file, how | fcntl.LOCK_NB))  # fails where it would wait
    with (tmp_path / "ours" / FILE).open("rb") as held:
        flock(held, fcntl.LOCK_EX)
        record([tmp_path / "ours", tmp_path / "mine"], "evidence", own, link=LINK)
    assert [row["event"] for row in lines(tmp_path / "mine")] == ["evidence"]


def test_evidence_is_page_and_values_without_host_or_path(tmp_path: Path) -> None:
    own = opened(tmp_path)
    (event,) = record([tmp_path], "evidence", own, link=LINK).evidence
    page, _, query = event.view.partition("?")
    assert (page, parse_qs(query)["m"], parse_qs(query)["metric"]) == ("percentiles", [RUN], ["TPOT"])
    assert "127.0.0.1" not in (tmp_path / FILE).read_text()
    assert from_link(event.view).query() == from_link(LINK).query()


def test_evidence_on_the_default_page_names_it(tmp_path: Path) -> None:
    (event,) = record(
        [tmp_path], "evidence", opened(tmp_path), link=View("verdict", {"m": RUN}).link("http://h")
    ).evidence
    assert event.view.startswith("verdict?v=2&m=" + RUN)
    assert from_link(event.view).page == "verdict"


@pytest.mark.parametrize(
    ("event", "said", "words"),
    [
        ("opened", {"statement": "x", "prediction": " "}, "needs a prediction that could fail"),
        ("opened", {"prediction": "x"}, "needs a statement"),
        ("evidence", {}, "needs the link of a view"),
        ("evidence", {"link": "http://h/percentiles?v=1&metric=TPOT"}, "names no measured run"),
        ("evidence", {"link": f"http://h/percentiles?m={RUN}&metric=nonsense"}, "metric=nonsense"),
        ("evidence", {"link": f"http://h/nowhere?m={RUN}"}, "no page 'nowhere'"),
        ("evidence", {"link": f"http://h/?m={RUN}&v=99"}, "version 99"),
        ("supported", {}, "Support needs evidence"),
        ("retracted", {"text": "\n "}, "needs the reason"),
        ("reopened", {"text": "x"}, "is open: only"),
        ("supported", {"layer": "gremlins"}, "expected one of memory, client"),
        ("retracted", {"text": "x" * 4001}, "4,001 characters"),
    ],
)
def test_what_is_refused_leaves_no_trace(tmp_path: Path, event: str, said: dict[str, str], words: str) -> None:
    own = opened(tmp_path)
    before = (tmp_path / FILE).read_bytes()
    with pytest.raises(GapscopeError, match=words):
        record([tmp_path], event, own, **said)
    assert (tmp_path / FILE).read_bytes() == before


def test_support_after_a_retraction_needs_newer_evidence(tmp_path: Path) -> None:
    own = opened(tmp_path)
    record([tmp_path], "evidence", own, link=LINK)
    record([tmp_path], "retracted", own, text="wrong run")
    with pytest.raises(GapscopeError, match="open it again"):
        record([tmp_path], "evidence", own, link=LINK)
    with pytest.raises(GapscopeError, match="only an open one"):
        record([tmp_path], "supported", own)
    assert record([tmp_path], "reopened", own, text="the run was right").status == "open"
    with pytest.raises(GapscopeError, match="none newer than its retraction"):
        record([tmp_path], "supported", own)
    record([tmp_path], "evidence", own, link=LINK)
    assert record([tmp_path], "supported", own).status == "supported"


def test_an_id_is_found_by_its_beginning_and_never_guessed(tmp_path: Path) -> None:
    first, second = opened(tmp_path, "one"), opened(tmp_path, "two")
    with pytest.raises(GapscopeError, match=r"may be .*, .*: give more"):
        record([tmp_path], "retracted", "h", text="x")
    for ref in ("", "zzz"):
        with pytest.raises(GapscopeError, match="No hypothesis"):
            record([tmp_path], "retracted", ref, text="x")
    assert first != second


def test_two_equal_statements_at_one_time_are_two_hypotheses(tmp_path: Path) -> None:
    assert opened(tmp_path) != opened(tmp_path)
    assert len(read([tmp_path]).hypotheses) == 2


def test_several_stores_are_one_book_and_the_last_is_written(tmp_path: Path) -> None:
    first, last = tmp_path / "first", tmp_path / "last"
    own = opened(first)
    before = (first / FILE).read_bytes()
    earlier = datetime(2026, 2, 1, tzinfo=UTC)  # this machine's clock is a month behind
    record([first, last], "evidence", own, link=LINK, now=earlier)
    found = record([first, last], "supported", own, now=earlier)
    assert (first / FILE).read_bytes() == before
    assert [row["event"] for row in lines(last)] == ["evidence", "supported"]
    assert read([first, last]).hypotheses == {own: found}
    assert read([first, last]).bad == ()
    alone = read([last])
    assert not alone.hypotheses
    assert [one.reason for one in alone.bad] == [f"There is no hypothesis {own}."] * 2


def test_a_copied_store_says_everything_once(tmp_path: Path) -> None:
    own = opened(tmp_path / "a")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / FILE).write_bytes((tmp_path / "a" / FILE).read_bytes())
    book = read([tmp_path / "a", tmp_path / "b", tmp_path / "a"])
    assert (list(book.hypotheses), book.bad, book.copies) == ([own], (), 1)


def test_a_cut_off_line_is_shown_and_keeps_to_itself(tmp_path: Path) -> None:
    own = opened(tmp_path)
    with (tmp_path / FILE).open("ab") as file:
        file.write(b'{"id":"' + own.encode() + b'","event":"retr')
    assert record([tmp_path], "evidence", own, link=LINK).status == "open"
    book = read([tmp_path])
    assert [one.line for one in book.bad] == [2]
    assert "is the line cut off?" in bad_words(book)
    assert [event.event for event in book.hypotheses[own].events] == ["opened", "evidence"]
    assert f"{tmp_path.name}/{FILE} line 2" in book_text(book)
    assert str(tmp_path) not in book_text(book)  # the folder's name, not where it lies


def test_a_whole_row_without_its_line_end_counts(tmp_path: Path) -> None:
    own = opened(tmp_path)
    (tmp_path / FILE).write_bytes((tmp_path / FILE).read_bytes().rstrip(b"\n"))
    record([tmp_path], "evidence", own, link=LINK)
    assert read([tmp_path]).bad == ()
    assert len(lines(tmp_path)) == 2


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (b"[1, 2]", "expected a JSON object"),
        (b'{"id":"h1","event":"praised","time":"2026-03-01T12:00:00Z"}', 'event is "praised"'),
        (b'{"id":"h1","event":"opened","time":"yesterday","statement":"s","prediction":"p"}', 'time is "yesterday"'),
        (b'{"id":"h1","event":"opened","time":"2026-03-01T12:00:00Z","statement":"s"}', "prediction is missing"),
        (b'{"id":"h1","event":"retracted","time":"2026-03-01T12:00:00Z","text":""}', 'text is ""'),
        (b'{"id":"h1","event":"evidence","time":"2026-03-01T12:00:00Z","view":7}', "view is 7"),
        (b"\xff\xfe", "cut off"),
    ],
)
def test_foreign_lines_are_counted_with_what_is_wrong(tmp_path: Path, row: bytes, words: str) -> None:
    own = opened(tmp_path)
    with (tmp_path / FILE).open("ab") as file:
        file.write(b"\n" + row + b"\n")
    book = read([tmp_path])
    assert list(book.hypotheses) == [own]
    (bad,) = book.bad
    assert bad.line == 3
    assert words in bad.reason


def test_fields_of_a_later_gapscope_are_left_alone(tmp_path: Path) -> None:
    own = opened(tmp_path)
    (tmp_path / FILE).write_text(json.dumps(lines(tmp_path)[0] | {"author": "somebody", "layer": "quantum"}) + "\n")
    book = read([tmp_path])
    assert book.bad == ()
    assert book.hypotheses[own].layer == "quantum"
    assert "attribution: quantum" in book_text(book)


def test_a_store_that_is_no_folder_is_said_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(GapscopeError, match="Nothing was written"):
        opened(tmp_path / "file")
    (tmp_path / FILE).mkdir()
    with pytest.raises(GapscopeError, match="cannot be read"):
        read([tmp_path])


class FullDisk(FileIO):
    """Takes half of what it is given."""

    def write(self, data: bytes) -> int:  # type: ignore[override]
        return super().write(data[: len(data) // 2])


def test_a_full_disk_leaves_no_half_of_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = opened(tmp_path)
    before = (tmp_path / FILE).read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", lambda path, mode, **_options: FullDisk(path, mode.replace("b", "")))
        with pytest.raises(GapscopeError, match=r"Nothing was written.*No space left"):
            record([tmp_path], "evidence", own, link=LINK)
    assert (tmp_path / FILE).read_bytes() == before
    assert record([tmp_path], "evidence", own, link=LINK).evidence


WRITER = """
import sys
from pathlib import Path
from dashboard.hypotheses import record
store, own, link, name = Path(sys.argv[1]), *sys.argv[2:]
for k in range(60):
    record([store], "evidence", own, link=link, text=f"{name} {k}")
"""


def test_two_processes_append_at_once_and_nothing_is_lost(tmp_path: Path) -> None:
    own = opened(tmp_path)
    command = [sys.executable, "-c", WRITER, str(tmp_path), own, LINK]
    writers = [subprocess.Popen([*command, name]) for name in ("left", "right")]
    assert [writer.wait(120) for writer in writers] == [0, 0]
    book = read([tmp_path])
    assert book.bad == ()
    said = [event.text for event in book.hypotheses[own].evidence]
    for name in ("left", "right"):
        assert [text for text in said if text.startswith(name)] == [f"{name} {k}" for k in range(60)]
    times = [row["time"] for row in lines(tmp_path)]
    assert times == sorted(set(times))


# -- laws ------------------------------------------------------------------------------------------------------------

KINDS = ("opened", "evidence", "supported", "retracted", "reopened")


class Model:
    """The rules once more, as a table of what is allowed."""

    def __init__(self) -> None:
        self.status: dict[str, str] = {}
        self.fresh: dict[str, int] = {}

    def allows(self, kind: str, own: str) -> bool:
        return kind in {
            "open": ["evidence", "retracted", *(["supported"] if self.fresh[own] else [])],
            "supported": ["evidence", "retracted", "reopened"],
            "retracted": ["reopened"],
        }.get(self.status[own], [])

    def follow(self, kind: str, own: str) -> None:
        self.status[own] = {"opened": "open", "reopened": "open", "evidence": self.status.get(own, "")}.get(kind, kind)
        self.fresh[own] = {"opened": 0, "retracted": 0}.get(kind, self.fresh.get(own, 0) + (kind == "evidence"))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 2), st.integers(0, 1)), max_size=25))
def test_any_sequence_leaves_what_the_rules_say_and_only_ever_appends(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int, int]]
) -> None:
    folder = tmp_path_factory.mktemp("books")
    stores = [folder / "a", folder / "b"]
    model, ids, written = Model(), [], 0
    for kind, which, place in steps:
        order = stores if place else stores[::-1]  # two people with the same stores, each writing into an own one
        before = [(s / FILE).read_bytes() if (s / FILE).exists() else b"" for s in stores]
        if kind == "opened":
            ids.append(record(order, kind, statement="s", prediction="p").id)
            model.follow(kind, ids[-1])
            written += 1
        elif ids:
            own = ids[which % len(ids)]
            if model.allows(kind, own):
                assert record(order, kind, own, text="t", link=LINK).status
                model.follow(kind, own)
                written += 1
            else:
                with pytest.raises(GapscopeError):
                    record(order, kind, own, text="t", link=LINK)
        now = [(s / FILE).read_bytes() if (s / FILE).exists() else b"" for s in stores]
        assert all(new.startswith(old) for new, old in zip(now, before, strict=True))
        assert sum(data.count(b"\n") for data in now) == written
    for order in (stores, stores[::-1]):
        book = read(order)
        assert book.bad == ()
        assert {own: one.status for own, one in book.hypotheses.items()} == model.status
        assert {own: len(one.standing) for own, one in book.hypotheses.items()} == model.fresh


rows = st.one_of(
    st.binary(max_size=40).map(lambda data: data.replace(b"\n", b"")),
    st.fixed_dictionaries(
        {"id": st.sampled_from(["h1", "h2"]), "event": st.sampled_from([*KINDS, "praised"])},
        optional={
            "time": st.sampled_from(["2026-03-01T12:00:00Z", "2026-03-01T12:00:01.5Z", "noon"]),
            "statement": st.sampled_from(["s", "", None, 4]),
            "prediction": st.just("p"),
            "text": st.sampled_from(["t", ""]),
            "view": st.just("verdict?v=1"),
        },
    ).map(lambda row: json.dumps(row).encode()),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(rows, max_size=20), st.booleans())
def test_every_line_is_used_or_shown_whatever_it_holds(
    tmp_path_factory: pytest.TempPathFactory, found: list[bytes], ended: bool
) -> None:
    store = tmp_path_factory.mktemp("foreign")
    (store / FILE).write_bytes(b"\n".join(found) + (b"\n" if ended else b""))
    book = read([store])
    used = sum(len(one.events) for one in book.hypotheses.values())
    assert used + len(book.bad) + book.copies == sum(bool(line.strip()) for line in found)
    for form in ("table", "markdown", "json"):
        assert book_text(book, form=form)


@given(st.lists(st.tuples(st.sampled_from(KINDS), st.sampled_from(["h1", "h2"])), max_size=20))
def test_events_that_break_a_rule_change_nothing(steps: list[tuple[str, str]]) -> None:
    said = {"statement": "s", "prediction": "p", "text": "t", "view": "verdict?v=1"}
    events = [event_of({"id": own, "event": kind, "time": "2026-03-01T12:00:00Z"} | said) for kind, own in steps]
    found, refused = fold(events)
    assert fold([event for at, event in enumerate(events) if at not in refused]) == (found, {})


# -- command line ----------------------------------------------------------------------------------------------------


def test_the_command_line_has_every_event(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(["hypothesis", *arguments, "--store", str(tmp_path)])
        return (code, *capsys.readouterr())

    code, out, _ = run("open", "decode is cheap", "--prediction", "the gap closes", "--layer", "timing")
    own, status = out.split()
    assert (code, status) == (0, "open")
    assert run("support", own) == (2, "", f"gapscope: Support needs evidence: hypothesis {own} has none.\n")
    assert run("evidence", own, LINK, "--note", "9 % low")[1] == f"{own} open\n"
    assert run("support", own, "--residual", "the tail")[1] == f"{own} supported\n"
    assert run("retract", own, "warm run")[1] == f"{own} retracted\n"
    assert run("reopen", own, "it was not")[1] == f"{own} open\n"
    assert run("retract", own, " ")[0] == 2
    table = run("list", "--status", "open")[1]
    for words in ("decode is cheap", "the gap closes", "timing model", "the tail", "9 % low", "warm run", "it was not"):
        assert words in table
    assert run("list", "--status", "retracted")[1] == "No hypotheses.\n"
    told = json.loads(run("list", "--format", "json")[1])
    assert [event["event"] for event in told["hypotheses"][0]["events"]] == [
        "opened", "evidence", "supported", "retracted", "reopened",
    ]  # fmt: skip
    assert "**decode is cheap** (open, " in run("list", "--format", "markdown")[1]
    with pytest.raises(SystemExit) as stopped:
        main(["hypothesis", "open", "no prediction", "--store", str(tmp_path)])
    assert stopped.value.code == 2
