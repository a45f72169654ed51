"""The commands compare, runs, serve and doctor: golden output per format, exit codes, errors in one sentence."""

from __future__ import annotations

import builtins
import hashlib
import json
import os
import re
import socket
from pathlib import Path
from typing import Any

import pytest
from small_runs import MS, SAMPLES, S, a_pass, identity, request, write

from dashboard.cli import main
from dashboard.cli.commands import build_parser
from dashboard.metrics import METRICS
from engine.bundle import Check
from engine.traces import load_trace
from engine.traces.cache import TraceCache

GOLDEN = Path(__file__).parent / "golden"


def workload(factor: float, count: int, **values: Any) -> list[dict[str, Any]]:
    """Requests on two lanes, one canceled; TTFT 100 to 190 ms and TPOT 20 to 29 ms times the factor."""
    rows = []
    for k in range(count):
        at, step = k * S // 4, k % 10
        first = at + round((100 + 10 * step) * factor * MS)
        last = first + round(4 * (20 + step) * factor * MS)
        row = request(f"r{k:03}", at=at, lane=k % 2, first_visible_ns=first, last_visible_ns=last, end_ns=last + MS)
        rows.append(row | values)
    rows[-1] |= {"status": "canceled", "cached_tokens": None}
    return rows


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A measured run, its repeat, and a replay of it that is slower and partly outside its timing model."""
    folder = tmp_path_factory.mktemp("runs")
    passes = [a_pass(k, num_prefill_requests=int(k % 3 == 0), sum_prefill_tokens=33 * (k % 3 == 0)) for k in range(30)]
    replayed = [
        row | {"duration_ns": 11 * MS, "resolution": "exact" if row["pass_index"] % 5 else "clamped"} for row in passes
    ]
    cells = [
        {"class": "decode_only", "decode_requests": 1, "resolution": "exact", "count": 24, "modelled_ns": 264 * MS},
        {"class": "mixed", "decode_requests": 1, "resolution": "clamped", "count": 6, "modelled_ns": 66 * MS},
    ]
    write(folder, "measured", workload(1.0, 40), passes=passes)
    write(folder, "repeat", workload(1.02, 40), record=identity(hardware__load=[7]), passes=passes)
    write(folder, "replay", workload(1.05, 41), kind="replay", passes=replayed, coverage=cells)
    return folder


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(arguments)
    out, err = capsys.readouterr()
    return code, re.sub(r"-[0-9a-f]{12}\b", "-<digest>", out), err


@pytest.mark.parametrize(("form", "ending"), [("table", "txt"), ("markdown", "md"), ("json", "json")])
@pytest.mark.parametrize("command", ["compare", "runs"])
def test_golden_output(capsys: pytest.CaptureFixture[str], root: Path, command: str, form: str, ending: str) -> None:
    arguments = [command, "--store", str(root), "--format", form]
    if command == "compare":
        arguments += ["measured", "replay", "--gate", "ttft.mean<=10%", "--gate", "ttft.p90<=4%"]
    code, out, _ = run(capsys, *arguments)
    out = re.sub(r'"created_unix_ns": \d+', '"created_unix_ns": 0', out)
    golden = GOLDEN / f"{command}.{ending}"
    if os.environ.get("GAPSCOPE_WRITE_GOLDEN"):
        golden.write_text(out, encoding="utf-8")
    assert out == golden.read_text(encoding="utf-8")
    assert code == (1 if command == "compare" else 0)


def test_all_formats_say_the_same_numbers(capsys: pytest.CaptureFixture[str], root: Path) -> None:
    code, out, _ = run(capsys, "compare", "measured", "replay", "--store", str(root), "--format", "json")
    assert code == 0
    found = {f"{row['metric']}.{row['statistic']}": row for row in json.loads(out)["rows"]}
    # 39 successes: TTFT 100, 110, ... 190 ms, the last ten without 190.
    mean = (4 * sum(range(100, 200, 10)) - 190) / 39
    assert found["ttft.mean"]["measured"]["value"] == pytest.approx(mean, rel=1e-9)
    assert found["ttft.mean"]["replay"]["value"] == pytest.approx(1.05 * 145, rel=1e-9)
    table = run(capsys, "compare", "measured", "replay", "--store", str(root))[1]
    assert f"{mean:,.2f}" in table
    assert "±2.0%" in table


@pytest.mark.parametrize(
    ("gate", "code"), [("ttft.mean<=10%", 0), ("ttft.mean<=1%", 1), ("coverage.time=0.7..0.9", 0), ("ttft.mean<10%", 2)]
)
def test_exit_codes_of_gates(capsys: pytest.CaptureFixture[str], root: Path, gate: str, code: int) -> None:
    assert run(capsys, "compare", "measured", "replay", "--store", str(root), "--gate", gate)[0] == code


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("compare", "measured", "absent"), "No run 'absent'"),
        (("compare", "measured", "replay", "--population", "lunch"), "Unknown phase 'lunch'"),
        (("serve", "--port", "0"), "Port 0"),
    ],
)
def test_bad_input_is_one_sentence(
    capsys: pytest.CaptureFixture[str], root: Path, arguments: tuple[str, ...], words: str
) -> None:
    code, out, err = run(capsys, *arguments, "--store", str(root))
    assert (code, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1


def test_population_estimator_and_window_reach_the_numbers(capsys: pytest.CaptureFixture[str], root: Path) -> None:
    options = ("--population", "profile.root", "--estimator", "nearest_rank", "--window", "observed_span")
    out = run(capsys, "compare", "measured", "replay", "--store", str(root), "--format", "json", *options)[1]
    found = json.loads(out)
    assert (found["population"], found["estimator"], found["window"]) == options[1::2]
    p90 = next(row for row in found["rows"] if (row["metric"], row["statistic"]) == ("ttft", "p90"))
    assert p90["measured"]["value"] % 10 == pytest.approx(0)  # a value of the sample, not one between two
    assert {row["statistic"] for row in found["rows"] if row["metric"] == "request_rate"} == {"observed_span"}


def test_runs_lists_the_samples(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "runs", "--store", str(SAMPLES), "--format", "json", "--kind", "measured")
    assert code == 0
    found = {row["run_id"].rpartition("-")[0]: row for row in json.loads(out)}
    assert {name: row["requests"] for name, row in found.items()} == {
        "ample8": 750,
        "ample8_repeat": 778,
        "tight8": 611,
        "tight8_repeat": 593,
        "recorded-ample8": 911,
        "recorded-tight8": 605,
        "agentic_aiperf": 243,
        "stub_aiperf": 86,
        "stub_guidellm": 70,
        "stub_sglang_bench": 40,
        "stub_vllm_bench": 40,
    }
    assert all(row["state"] == "ok" for row in found.values())


def altered(file: Path) -> None:
    """Change one byte in the middle of a file; its size stays."""
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(bytes(data))


def test_runs_looks_at_digests_unless_told_not_to(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    run_id = write(tmp_path, "m", [request("a")])
    altered(tmp_path / run_id / "requests.parquet")
    code, out, _ = run(capsys, "runs", "--store", str(tmp_path))
    assert code == 0
    assert "Run m-<digest> is altered: requests.parquet no longer as sealed" in out
    row = json.loads(run(capsys, "runs", "--store", str(tmp_path), "--format", "json")[1])[0]
    assert (row["state"], row["verified"]) == ("altered", False)
    assert "ok by size, digests not looked at" in run(capsys, "runs", "--store", str(tmp_path), "--quick")[1]


def test_runs_prefers_the_sound_copy_of_a_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    run_id = write(tmp_path / "a", "m", [request("a")])
    write(tmp_path / "b", "m", [request("a")])
    altered(tmp_path / "a" / run_id / "requests.parquet")
    stores = ("--store", str(tmp_path / "a"), "--store", str(tmp_path / "b"))
    (row,) = json.loads(run(capsys, "runs", *stores, "--format", "json")[1])
    assert (row["state"], row["verified"]) == ("ok", True)


def test_runs_says_which_check_failed_and_why(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    b, d = Check("b", "fail", "3 of 4 are wrong"), Check("d", "fail", "no")
    checks = [Check("a", "pass"), b, Check("c", "unknown"), d]
    write(tmp_path, "two", [request("a")], qualification=checks)
    write(tmp_path, "one", [request("b")], qualification=checks[:3])
    lines = run(capsys, "runs", "--store", str(tmp_path))[1].splitlines()
    assert [line.split("fail  ", 1)[1] for line in lines[2:]] == [
        "ok; failed b: 3 of 4 are wrong",
        "ok; failed b: 3 of 4 are wrong (and 1 more)",
    ]
    found = json.loads(run(capsys, "runs", "--store", str(tmp_path), "--format", "json")[1])
    assert found[1]["failed_checks"] == [{"check": "b", "detail": "3 of 4 are wrong"}, {"check": "d", "detail": "no"}]


def test_doctor_verifies_the_samples(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, _ = run(capsys, "doctor", "--store", str(SAMPLES), "--store", str(tmp_path))
    assert code == 0
    assert "ok     duckdb: " in out
    assert f"store {tmp_path}: writable" in out
    assert re.search(r"runs: \d+ verified by digest", out)


def test_doctor_names_an_altered_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    run_id = write(tmp_path, "m", [request("a")])
    with open(tmp_path / run_id / "requests.parquet", "ab") as file:
        file.write(b"x")
    code, out, _ = run(capsys, "doctor", "--store", str(tmp_path))
    assert code == 1
    assert "WRONG  run m-<digest>" in out


def test_doctor_reads_the_traces_beside_the_runs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    folder.mkdir()
    data = b'{"timestamp": 0, "input_length": 32, "output_length": 8, "hash_ids": [1, 2]}\n'
    digest = hashlib.sha256(data).hexdigest()[:12]
    (folder / f"good-{digest}.jsonl").write_bytes(data)
    assert run(capsys, "doctor", "--store", str(tmp_path))[0] == 0
    load_trace(folder / f"good-{digest}.jsonl", cache=TraceCache(tmp_path))
    _, out, _ = run(capsys, "doctor", "--store", str(tmp_path))
    assert f"compiled traces: 1, 0.0 MB in {tmp_path}/compiled, which can be deleted" in out
    (folder / f"other-{digest}.jsonl").write_bytes(data.replace(b"8", b"9"))
    (folder / "cut-0123456789ab.jsonl").write_bytes(data[:-9])
    (folder / ".partial").write_bytes(b"")
    code, out, _ = run(capsys, "doctor", "--store", str(tmp_path))
    assert code == 1
    wrong = [line for line in out.splitlines() if line.startswith("WRONG")]
    assert len(wrong) == 2
    assert f"trace {folder}/cut-<digest>.jsonl: " in wrong[0]
    assert "line 1" in wrong[0]
    assert f"its digest is {hashlib.sha256(data.replace(b'8', b'9')).hexdigest()[:12]} and its name says" in wrong[1]
    assert "ok     traces: 1 read whole" in out


def test_serve_announces_nothing_that_it_cannot_serve(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = busy.getsockname()[1]
        code, out, err = run(capsys, "serve", "--port", str(port), "--store", str(tmp_path))
    assert (code, out) == (2, "")
    assert err == (
        f"gapscope: Port {port} of 127.0.0.1 cannot be used (Address already in use): give another one with "
        "--port, or an address of this machine with --host.\n"
    )
    file = tmp_path / "file"
    file.touch()
    code, out, err = run(capsys, "serve", "--port", str(port), "--store", str(file))
    assert (code, out) == (2, "")
    assert err == f"gapscope: Store {file} is not a folder: give --store a folder of runs.\n"


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("compare", "runs", "serve", "doctor"):
        with pytest.raises(SystemExit) as stopped:
            build_parser().parse_args([command, "--help"])
        assert stopped.value.code == 0
        assert "--store" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        build_parser().parse_args(["compare", "--help"])
    assert "gapscope compare ample8" in capsys.readouterr().out
    assert "ttft" in METRICS


def test_ctrl_c_while_packages_are_read_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(name: str, *rest: Any) -> Any:
        if name == "dashboard.cli.commands":
            raise KeyboardInterrupt
        return usual(name, *rest)

    usual = builtins.__import__
    monkeypatch.setattr(builtins, "__import__", interrupted)
    code = main(["runs"])
    monkeypatch.undo()
    assert code == 130
    assert capsys.readouterr().err == "gapscope: interrupted before the command began: nothing was written.\n"
