"""The command line: what it prints, how it ends, and what it refuses."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from engine.bundle import open_bundle
from engine.cli import main as cli
from engine.cli import terminal
from engine.knobs import KNOBS
from engine.stores import default_stores

FIXED_COSTS = ("pass_us", "prefill_token_us", "decode_request_us", "kv_token_ns")
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    file = tmp_path / "small.jsonl"
    lines = [
        {
            "session_id": f"s{s}",
            "input_length": 32 + 16 * k,
            "output_length": 8,
            "hash_ids": [s * 10 + i for i in range(2 + k)],
        }
        | ({"timestamp": 0} if k == 0 else {"delay": 5})
        for s in range(4)
        for k in range(3)
    ]
    file.write_bytes(b"\n".join(orjson.dumps(line) for line in lines))
    return file


def replay_arguments(trace: Path, store: Path, *more: str) -> list[str]:
    return ["replay", "--trace", str(trace), "--timing", "fixed", "--store", str(store), *more]


def test_replay_prints_the_id_of_a_sound_run(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = tmp_path / "store"
    assert cli.main(replay_arguments(trace, store, "--set", "lanes=2", "--title", "Two lanes")) == 0
    out, err = capsys.readouterr()
    run_id = out.strip()
    assert err == ""  # no terminal, no progress bar
    bundle = open_bundle(store / run_id)
    assert bundle.verify() == []
    assert (bundle.title, bundle.rows("requests"), bundle.lineage["config"]["lanes"]) == ("Two lanes", 12, 2)
    assert cli.main(replay_arguments(trace, store, "--set", "lanes=2", "--title", "Two lanes")) == 0
    assert capsys.readouterr().out.strip() == run_id  # the same again is the same run


def test_a_replay_can_be_varied_from_its_own_record(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "store"
    assert cli.main(replay_arguments(trace, store, "--set", "lanes=2")) == 0
    first = capsys.readouterr().out.strip()
    trace.unlink()  # the store has kept it
    assert cli.main(["replay", "--like", first, "--set", "kv_blocks=500", "--store", str(store)]) == 0
    second = open_bundle(store / capsys.readouterr().out.strip())
    assert second.lineage["parent_run"] == first
    assert second.lineage["knobs_changed"] == {"kv_blocks": {"from": 8192, "to": 500}}
    assert second.lineage["config"]["lanes"] == 2
    assert second.title == f"{first.rpartition('-')[0]}, kv_blocks=500"
    assert cli.main(["replay", "--like", first, "--name", "No Name", "--store", str(store)]) == terminal.BAD_INPUT
    assert "expected up to 64 lower-case letters" in capsys.readouterr().err
    assert cli.main(["replay", "--like", first, "--name", "half", "--store", str(store)]) == 0
    assert capsys.readouterr().out.startswith("half-")


def test_an_altered_run_is_not_replayed(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = tmp_path / "store"
    assert cli.main(replay_arguments(trace, store)) == 0
    run_id = capsys.readouterr().out.strip()
    file = store / run_id / "requests.parquet"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    assert cli.main(["replay", "--like", run_id, "--store", str(store)]) == terminal.BAD_INPUT
    assert "requests.parquet" in capsys.readouterr().err


def test_dry_run_shows_every_knob_with_its_origin_and_writes_nothing(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(replay_arguments(trace, tmp_path / "store", "--set", "lanes=3", "--dry-run")) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    shown = {words[0]: words[-1] for words in lines if words}
    assert shown["lanes"] == "set"
    assert shown["block_size"] == "default"
    assert {knob.name for knob in KNOBS} <= set(shown)
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--set", "lane=3"], "Unknown knob 'lane'. Did you mean lanes?"),
        (["--set", "lanes"], "expected KEY=VALUE"),
        (["--set", "lanes=0"], "out of range"),
        (["--set", "duration_s=1e-300"], "no time at all"),
        ([f"--set=fixed_{name}=0" for name in FIXED_COSTS], "no pass would take any time"),
        (["--set", "block_size=12"], "blocks of 16 tokens but block_size=12"),
        (["--set", "kv_blocks=3"], "can never fit the KV pool"),
        (["--like", "nothing"], "No run 'nothing' in"),
        (["--timing", "fpm"], "needs a timing model"),
        (["--timing", "fpm", "--model", "absent.json"], "Cannot read the timing model absent.json"),
        (["--timing", "fpm", "--model", "a", "--fit", "b"], "give one of them"),
    ],
)
def test_bad_input_ends_with_one_sentence_and_code_2(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], said: str
) -> None:
    assert cli.main(replay_arguments(trace, tmp_path / "store", *more)) == terminal.BAD_INPUT
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("gapscope: ")
    assert said in err
    assert err.count("\n") == 1
    assert not (tmp_path / "store").exists() or list((tmp_path / "store").iterdir()) == []


def test_nothing_to_replay_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["replay", "--timing", "fixed"]) == terminal.BAD_INPUT
    assert "Nothing to replay" in capsys.readouterr().err
    assert cli.main(["replay"]) == terminal.BAD_INPUT
    assert "give --like RUN, or --trace FILE" in capsys.readouterr().err


def test_a_truncated_trace_names_the_line(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace.write_bytes(trace.read_bytes()[:-20])
    assert cli.main(["trace", "inspect", str(trace)]) == terminal.BAD_INPUT
    assert "line 12: not valid JSON" in capsys.readouterr().err


def test_inspect_counts_what_is_in_a_trace(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["trace", "inspect", str(trace)]) == 0
    out = capsys.readouterr().out
    assert "turns             12" in out
    # Per session 32, 48 and 64 tokens, of which the second and third reuse 32 and 48.
    assert f"{100 * 80 / 144:.1f} % of the prompt tokens" in out
    assert "mean 48.0, median 48.0, largest 64.0, sum 576" in out


def test_help_lists_every_knob_with_its_range(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["replay", "--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    for knob in KNOBS:
        assert f"\n  {knob.name} = {terminal.text_of(knob.default)}   {knob.expectation()}\n" in text


INTERRUPTED_REPLAY = """
import os, signal, sys
from engine.cli import main as cli
from engine.replay import loop as replay
look = replay._Watch.look
def interrupted(*arguments):
    os.kill(os.getpid(), int(sys.argv.pop()))
    look(*arguments)
replay._Watch.look = interrupted
sys.exit(cli.main(sys.argv[1:-1]))
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, terminal.INTERRUPTED), (signal.SIGTERM, 143)])
def test_a_signal_ends_with_its_code_and_leaves_nothing(
    trace: Path, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    arguments = [*replay_arguments(trace, tmp_path / "store"), str(int(number))]
    ended = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_REPLAY, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout) == (code, "")
    assert ended.stderr == "\ngapscope: interrupted; nothing is half written, finished runs stay.\n"
    assert not (tmp_path / "store").exists() or list((tmp_path / "store").iterdir()) == []


INTERRUPTED_IMPORT = """
import os, signal, sys
from engine.cli import main, terminal
def run(arguments):
    try:
        os.kill(os.getpid(), signal.SIGINT)
    except KeyboardInterrupt:
        raise AttributeError("partially initialized module") from None
class Parser:
    def parse_args(self, arguments):
        return type("Parsed", (), {"run": staticmethod(run)})
sys.exit(terminal.run_command(Parser(), []))
"""


def test_an_interrupt_that_a_library_turns_into_its_own_error_is_still_one() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_IMPORT], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ended.returncode == terminal.INTERRUPTED
    assert ended.stderr == "\ngapscope: interrupted; nothing is half written, finished runs stay.\n"


def test_stores_come_from_the_environment_else_from_the_project(tmp_path: Path) -> None:
    assert default_stores({"GAPSCOPE_STORE": f"a{os.pathsep}b"}) == [Path("a"), Path("b")]
    assert default_stores({})[-1] == Path("runs")


class Terminal:
    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None: ...

    def isatty(self) -> bool:
        return True


def test_the_progress_bar_is_drawn_over_itself_and_goes_away() -> None:
    screen = Terminal()
    bar = terminal.ProgressBar("replay", screen)  # type: ignore[arg-type]
    bar.clear()
    assert screen.text == ""
    bar.show(0.5, "half")
    assert screen.text.endswith("replay [" + "#" * 12 + " " * 12 + "]  50% half")
    bar.show(None, "who knows")
    bar.clear()
    assert screen.text.endswith("replay who knows\r\x1b[2K")
