"""The commands part, model and deployment: what they print, and the presets that the docs show."""

from __future__ import annotations

import io
import json
import os
import re
from pathlib import Path

import pytest
from hf_configs import CONFIGS

from engine.cli import main as cli
from engine.deployment import load_model, load_part, model_names, part_names, preset_folders

GOLDEN = Path(__file__).parent / "golden"
DOCS = Path(__file__).parents[2] / "docs" / "deployment.md"
LOG = """\
INFO 03-14 09:12:41 [gpu_model_runner.py:1273] Starting to load model meta-llama/Llama-3.1-8B-Instruct...
INFO 03-14 09:12:55 [gpu_model_runner.py:1289] Model loading took 14.9888 GiB and 13.204526 seconds
(Worker_TP0 pid=7) INFO 03-14 09:13:07 [gpu_worker.py:298] Available KV cache memory: 54.62 GiB
(Worker_TP1 pid=8) INFO 03-14 09:13:07 [gpu_worker.py:298] Available KV cache memory: 54.31 GiB
INFO 03-14 09:13:08 [kv_cache_utils.py:566] GPU KV cache size: 447,088 tokens
INFO 03-14 09:13:08 [kv_cache_utils.py:570] Maximum concurrency for 32,768 tokens per request: 13.64x
"""


def golden(name: str, text: str) -> None:
    file = GOLDEN / name
    if os.environ.get("GAPSCOPE_WRITE_GOLDEN"):
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with the presets that the docs show."""
    text = DOCS.read_text(encoding="utf-8")
    for name, content in re.findall(r"<!-- example (\S+) -->\n```toml\n(.*?)```", text, flags=re.S):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content, encoding="utf-8")
    return tmp_path


def command(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = cli.main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("part_list.txt", "part list"),
        ("part_show.txt", "part show mi355x"),
        ("model_show.txt", "model show deepseek-v4-flash"),
        ("deployment_memory.txt", "deployment memory llama-3.1-8b h100-sxm --context 32768"),
        (
            "deployment_memory_ranks.txt",
            "deployment memory qwen3.5-397b-a17b b200-sxm --tp 8 --ep 8 --attention-dp 8 --weight-dtype fp8 "
            "--kv-dtype fp8 --graphs-gib 2.5",
        ),
    ],
)
def test_golden_output(capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str, arguments: str) -> None:
    code, out, err = command(capsys, *arguments.split(), "--store", tmp_path)
    assert (code, err) == (0, "")
    golden(name, out)


def test_a_log_beside_the_ledger(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    log = tmp_path / "vllm.log"
    log.write_text(LOG, encoding="utf-8")
    common = ("deployment", "compare-log", "llama-3.1-8b", "h100-sxm", log, "--store", tmp_path)
    code, out, err = command(capsys, *common)
    assert (code, err) == (0, "")
    golden("deployment_compare_log.txt", out)
    code, out, _ = command(capsys, *common, "--format", "json")
    found = json.loads(out)
    rows = {row["component"]: row for row in found["rows"]}
    assert rows["weights"]["difference"] == pytest.approx(2 * 8_030_261_248 / (1 << 30) - 14.9888)
    assert (code, found["unused"], found["ranges"]) == (0, 1, {"kv_pool_gib": [54.31, 54.62]})


def test_help_teaches(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    text = ""
    for action in ("memory", "compare-log"):
        with pytest.raises(SystemExit) as stopped:
            cli.main(["deployment", action, "--help"])
        assert stopped.value.code == 0
        text += capsys.readouterr().out
    golden("deployment_help.txt", text)


def test_a_log_can_come_from_standard_input(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(LOG))
    arguments = ("deployment", "compare-log", "llama-3.1-8b", "h100-sxm", "-", "--store", tmp_path)
    code, out, _ = command(capsys, *arguments)
    assert (code, out.splitlines()[-1]) == (0, "5 of 6 lines were used, as vLLM writes them.")


def test_every_model_is_listed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, _ = command(capsys, "model", "list", "--store", tmp_path)
    lines = {line.split()[0]: line for line in out.splitlines()[1:]}
    assert (code, set(lines)) == (0, set(model_names()))
    assert lines["deepseek-v3"].split()[1:6] == ["671.0", "B", "61", "7,168", "128"]
    assert "116.8 B" in lines["gpt-oss-120b"]
    assert lines["gpt-oss-120b"].endswith("8 kv heads, window on 18  4 of 128   bf16, experts mxfp4")


def test_the_presets_of_the_docs(capsys: pytest.CaptureFixture[str], store: Path) -> None:
    folders = preset_folders([store])
    part, model = load_part("h200-ours", folders), load_model("glm-5.2-pruned", folders)
    assert (part.hbm_gib, part.nic_gb_s, part.bf16_tflops, part.allreduce_gb_s) == (140.4, 25, 989, {4: 210, 8: 240})
    assert part.sources["nic_gb_s"] == "half of the adapters are cabled"
    assert model.experts is not None
    assert (model.experts.count, model.experts.topk, model.weight_dtype, model.layers) == (168, 8, "fp8", 78)
    code, out, _ = command(capsys, "part", "list", "--store", store)
    assert code == 0
    assert "\nh200-ours " in out
    code, out, _ = command(capsys, "model", "show", "glm-5.2-pruned", "--format", "json", "--store", store)
    assert (code, json.loads(out)["experts"]["count"]) == (0, 168)


def test_a_bad_preset_does_not_hide_the_others(capsys: pytest.CaptureFixture[str], store: Path) -> None:
    (store / "presets/parts/broken.toml").write_text("arch = 3\n", encoding="utf-8")
    code, out, err = command(capsys, "part", "list", "--store", store)
    assert (code, len(out.splitlines())) == (0, 1 + len(part_names()) + 1)  # heads, packaged ones, h200-ours
    assert err == "broken: Preset parts/broken.toml: arch is 3, expected text.\n"


def test_the_fields_of_the_docs_are_all_there_are() -> None:
    text = DOCS.read_text(encoding="utf-8")
    for name in [*part_names()[:1], *model_names()[:1]]:
        record = load_part(name) if name in part_names() else load_model(name)
        for field in set(record.__slots__) - {"name", "sources"}:
            assert f"`{field}`" in text, field


def test_a_config_is_named_by_its_file_or_its_folder(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = tmp_path / "Llama-Next"
    folder.mkdir()
    for name in ("config.json", "other.json"):
        (folder / name).write_text(json.dumps(CONFIGS["llama-3.1-8b"]), encoding="utf-8")
    code, out, _ = command(capsys, "model", "show", folder / "config.json", "--store", tmp_path)
    assert (code, out.splitlines()[0]) == (0, "Llama-Next")
    assert "head_dim is not stated: hidden_size 4096 / 32 heads" in out
    code, out, _ = command(capsys, "deployment", "memory", folder / "other.json", "h100-sxm", "--store", tmp_path)
    assert (code, out.split()[0]) == (0, "other")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["part", "show", "h100"], "There is no part 'h100'. Did you mean h100-sxm? `gapscope part list` names all"),
        (["model", "show", "../llama"], "'../llama' is no name of a model: expected a name, not a path"),
        (["model", "show", "nowhere/config.json"], "nowhere/config.json is missing"),
        (["deployment", "memory", "glm-5.2", "mi355x", "--kv-dtype", "fp7"], "Unknown dtype 'fp7'"),
        (
            ["deployment", "memory", "glm-5.2", "mi355x", "--tp", "8", "--dcp", "3"],
            "glm-5.2 with dcp=3 on 8 GPUs per sequence: expected a dcp that divides them",
        ),
        (
            ["deployment", "memory", "llama-3.1-8b", "h100-sxm", "--tp", "3"],
            "llama-3.1-8b has 32 heads, which 3 GPUs (tp / attention_dp) cannot share: expected a divisor.",
        ),
        (
            ["deployment", "memory", "llama-3.1-8b", "h100-sxm", "--tp", "2", "--ep", "4"],
            "llama-3.1-8b on tp=2 GPUs per stage: expected a tp that attention_dp=1 and ep=4 divide.",
        ),
        (
            ["deployment", "memory", "llama-3.1-8b", "h100-sxm", "--tp", "8", "--ep", "8"],
            "llama-3.1-8b has no experts that ep=8 groups could share: expected ep=1.",
        ),
        (["deployment", "memory", "glm-5.2", "mi355x", "--memory-fraction", "90"], "A memory fraction of 90"),
        (["deployment", "compare-log", "glm-5.2", "mi355x", "nowhere.log"], "nowhere.log cannot be read"),
    ],
)
def test_bad_input_is_a_sentence(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: list[str], message: str
) -> None:
    code, out, err = command(capsys, *arguments, "--store", tmp_path)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
