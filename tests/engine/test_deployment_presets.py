"""Presets: every packaged figure has a source; inheritance, and what is refused."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hf_configs import CONFIGS

from engine.deployment import load_model, load_part, model_names, part_names, preset_folders
from engine.deployment.presets import PACKAGED
from engine.errors import GapscopeError

PART = {
    "arch": "x1",
    "bf16_tflops": 100,
    "hbm_tb_s": 1.5,
    "link_gb_s": 50,
    "domain_gpus": 8,
    "nic_gb_s": 12.5,
    "kernel_us": 3,
}


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    for kind in ("parts", "models"):
        (tmp_path / "presets" / kind).mkdir(parents=True)
    return preset_folders([tmp_path])


def write(folders: list[Path], name: str, content: dict[str, Any] | str) -> None:
    text = content if isinstance(content, str) else json.dumps(content)
    (folders[0] / name).write_text(text, encoding="utf-8")


def test_every_part_and_model_is_there_and_loads() -> None:
    assert part_names() == [
        "b200-sxm",
        "b300-sxm",
        "gb200",
        "gb300",
        "h100-sxm",
        "h200-sxm",
        "mi300x",
        "mi325x",
        "mi355x",
    ]
    assert set(model_names()) == set(CONFIGS)
    for name in model_names():
        assert load_model(name).name == name


def test_figures_of_parts() -> None:
    mi355x, h200, gb300 = load_part("mi355x"), load_part("h200-sxm"), load_part("gb300")
    assert (mi355x.arch, mi355x.bf16_tflops, mi355x.fp4_tflops, mi355x.hbm_tb_s) == ("gfx950", 2500, 10000, 8.0)
    assert (mi355x.hbm_gib, mi355x.compute_units, mi355x.link_gb_s, mi355x.kernel_us) == (288, 256, 537.6, 4.98)
    assert mi355x.allreduce_gb_s == {2: 65.9, 4: 120.7, 8: 117.6}
    assert (h200.bf16_tflops, h200.fp4_tflops, h200.hbm_tb_s, h200.hbm_gib) == (989, None, 4.8, 141)
    assert (gb300.fp4_tflops, gb300.hbm_gib, gb300.domain_gpus, gb300.nic_gb_s) == (15000, 277.5, 72, 100)
    assert gb300.allreduce_gb_s == {}  # measured on another part, and a part is never assumed


@pytest.mark.parametrize("path", sorted(PACKAGED.glob("*/*.toml")), ids=lambda path: path.stem)
def test_every_packaged_figure_has_a_source(path: Path) -> None:
    """Each file says itself where it is from, and names in its sources only what there is to name."""
    values = tomllib.loads(path.read_text(encoding="utf-8"))
    record = load_part(path.stem) if path.parent.name == "parts" else load_model(path.stem)
    sources = values.pop("sources")
    assert sources
    values.pop("extends", None)
    assert "*" in record.sources or set(values) <= set(record.sources)
    for name in sources:
        top, _, inner = name.partition(".")
        assert name == "*" or hasattr(record, top)
        assert not inner or hasattr(getattr(record, top), inner)
    if path.parent.name == "models":
        assert path.stem.split("-")[0] in sources["*"].lower()  # a model's sources name that model


def test_a_preset_inherits_deeply_and_the_file_itself_wins(folders: list[Path]) -> None:
    write(folders, "parts/a.toml", 'extends = "h200-sxm"\nhbm_gib = 140.4\nallreduce_gb_s = { 2 = 200, 4 = 300 }\n')
    write(folders, "parts/b.json", {"bases": ["mi300x", "a"], "allreduce_gb_s": {"4": 350}, "sources": {"arch": "b"}})
    part = load_part("b", folders)
    assert (part.name, part.arch, part.hbm_gib, part.bf16_tflops) == ("b", "sm90", 140.4, 989)  # a is later than mi300x
    assert part.allreduce_gb_s == {2: 200.0, 4: 350.0}
    assert part.sources["arch"] == "b"
    assert "aiconfigurator" in part.sources["*"]
    assert "b" in part_names(folders)


def test_bases_and_extends_are_alike(folders: list[Path]) -> None:
    for word in ("bases", "extends"):
        write(folders, f"models/{word}.toml", f'{word} = ["glm-5", "glm-5.2"]\nmax_context = 4096\n')
    one, other = load_model("bases", folders), load_model("extends", folders)
    assert (one.attention, one.sparse, one.max_context) == (other.attention, other.sparse, other.max_context)
    assert one.sparse is not None
    assert (one.sparse.indexed_layers, one.max_context) == (21, 4096)


def test_a_hugging_face_config_is_a_model(folders: list[Path]) -> None:
    write(folders, "models/mine.json", CONFIGS["glm-5.2"])
    write(folders, "models/smaller.toml", 'extends = "mine"\nweight_dtype = "fp8"\n[experts]\ncount = 160\n')
    assert load_model("mine", folders).sparse == load_model("glm-5.2").sparse
    smaller = load_model("smaller", folders)
    assert smaller.experts is not None
    assert (smaller.weight_dtype, smaller.experts.count, smaller.experts.topk) == ("fp8", 160, 8)


def test_null_makes_a_figure_unknown_again(folders: list[Path]) -> None:
    write(folders, "parts/dark.json", {"extends": "h100-sxm", "hbm_gib": None})
    dark = load_part("dark", folders)
    assert dark.hbm_gib is None
    assert dark.sources["hbm_gib"] == "preset dark"  # no longer what the capacity of the other was sold as
    assert dark.sources["*"] == load_part("h100-sxm").sources["*"]


def test_a_changed_figure_has_no_inherited_source(folders: list[Path]) -> None:
    own = {"extends": "h100-sxm", "hbm_gib": 94, "nic_gb_s": 25, "allreduce_gb_s": {"8": 200}}
    write(folders, "parts/mine.json", own | {"sources": {"nic_gb_s": "cabled by half"}})
    mine = load_part("mine", folders)
    told = {name: mine.sources[name] for name in own if name != "extends"}
    assert told == {"hbm_gib": "preset mine", "nic_gb_s": "cabled by half", "allreduce_gb_s": "preset mine"}
    assert mine.sources["kernel_us"] == load_part("h100-sxm").sources["kernel_us"]
    write(folders, "parts/all.json", own | {"sources": {"*": "our lab"}})
    assert load_part("all", folders).sources["hbm_gib"] == "our lab"
    write(folders, "models/mine.toml", 'extends = "qwen3-30b-a3b"\n[experts]\ncount = 64\n')
    assert load_model("mine", folders).sources["experts.count"] == "preset mine"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (PART | {"hbm_gb": 80}, "parts/bad.json: unknown key 'hbm_gb', the nearest known one is 'hbm_gib'"),
        ({k: v for k, v in PART.items() if k != "arch"}, "arch is missing, expected text"),
        (PART | {"domain_gpus": 0}, "domain_gpus is 0, expected a whole number from 1"),
        (PART | {"kernel_us": "3"}, "kernel_us is '3', expected a number above 0"),
        (PART | {"hbm_tb_s": -1}, "hbm_tb_s is -1, expected a number above 0"),
        (PART | {"hbm_tb_s": True}, "hbm_tb_s is True, expected a number above 0"),
        (PART | {"bf16_tflops": float("inf")}, "bf16_tflops is inf, expected a number above 0 and at most 1,000,"),
        (PART | {"compute_share": 1.2}, "compute_share is 1.2, expected a share above 0 and at most 1"),
        (PART | {"allreduce_gb_s": {"two": 5}}, "allreduce_gb_s has the key 'two', expected a number of GPUs"),
        (PART | {"allreduce_gb_s": {"1": 5}}, "allreduce_gb_s.1 is 5, expected a number above 0"),
        (PART | {"sources": {"arch": 3}}, "sources.arch is 3, expected text"),
        (PART | {"name": "other"}, "unknown key 'name'"),
        (PART | {"extends": 3}, "extends is 3, expected the name of a preset or a list of names"),
        (PART | {"extends": "../h100-sxm"}, "is no name of a part: expected a name, not a path"),
        (PART | {"extends": "h100"}, r"There is no part 'h100' \(named by bad\). Did you mean h100-sxm\?"),
        ([1], "holds list: expected one object"),
        ("{", "is not valid JSON"),
    ],
)
def test_a_bad_part_is_refused_in_a_sentence(folders: list[Path], content: Any, message: str) -> None:
    write(folders, "parts/bad.json", content)
    with pytest.raises(GapscopeError, match=message) as refused:
        load_part("bad", folders)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("[attention]\nhead = 3\n", "models/bad.toml, attention: unknown key 'head', the nearest known one is 'heads'"),
        ("[attention]\nkv_heads = 5\n", "32 heads cannot share 5 kv_heads"),
        ('weight_dtype = "fp6"\n', "weight_dtype is 'fp6', expected one of fp32, bf16"),
        ("window_layers = 4\n", "4 window_layers and no window"),
        ("window_layers = 33\nwindow = 8\n", "33 linear and window layers of 32 layers"),
        ("experts = { count = 8, topk = 9, width = 64 }\n", "9 of 8 experts"),
        ("sparse = { topk = 64, schedule = [0, 4] }\n", "a schedule of 2 codes for 32 layers"),
        ("sparse = { topk = 64, schedule = [0, -4] }\n", "schedule is .*, expected a list of whole numbers"),
        ("dense_width = 0\n", "layers without experts have no MLP"),
        ("layers = 1e3\n", "layers is 1000.0, expected a whole number"),
    ],
)
def test_a_bad_model_is_refused_in_a_sentence(folders: list[Path], more: str, message: str) -> None:
    write(folders, "models/bad.toml", f'extends = "llama-3.1-8b"\n{more}')
    with pytest.raises(GapscopeError, match=message) as refused:
        load_model("bad", folders)
    assert "\n" not in str(refused.value)


def test_circles_are_refused(folders: list[Path]) -> None:
    write(folders, "parts/a.toml", 'bases = ["b"]\n')
    write(folders, "parts/b.toml", 'extends = "c"\n')
    write(folders, "parts/c.toml", 'extends = ["a"]\n')
    with pytest.raises(GapscopeError, match="inherit in a circle: a -> b -> c -> a"):
        load_part("a", folders)


@pytest.mark.parametrize("name", ["", "../h100-sxm", "/etc/passwd", "parts/h100-sxm", "..", "h100-sxm.toml/"])
def test_a_name_is_never_a_path(name: str) -> None:
    with pytest.raises(GapscopeError, match="expected a name, not a path"):
        load_part(name)


def test_an_unknown_name_names_the_nearest() -> None:
    with pytest.raises(GapscopeError, match=r"There is no model 'Llama-3.1'. Did you mean llama-3.1-8b\?"):
        load_model("Llama-3.1")


@pytest.mark.parametrize(
    ("asked", "meant"),
    [("h100", "h100-sxm"), ("MI300", "mi300x"), ("b20-sxm", "b200-sxm"), ("none", ""), ("tpu", ""), ("a100", "")],
)
def test_only_what_is_alike_is_suggested(asked: str, meant: str) -> None:
    with pytest.raises(GapscopeError) as refused:
        load_part(asked)
    hint = f" Did you mean {meant}?" if meant else ""
    assert str(refused.value) == f"There is no part {asked!r}.{hint} `gapscope part list` names all of them."


def test_a_name_may_be_in_upper_or_lower_case(folders: list[Path]) -> None:
    assert load_part("H100-SXM") == load_part("h100-sxm")
    assert load_model("Qwen3-8B").name == "qwen3-8b"
    write(folders, "parts/Mine.toml", 'extends = "H200-SXM"\n')
    assert load_part("mine", folders).name == "Mine"
    write(folders, "parts/mine.toml", 'extends = "h100-sxm"\n')
    assert load_part("mine", folders).name == "mine"
    with pytest.raises(GapscopeError, match="There is no part 'MINE'"):
        load_part("MINE", folders)


def test_a_name_means_the_same_in_every_store(folders: list[Path], tmp_path: Path) -> None:
    write(folders, "parts/h100-sxm.toml", 'extends = "h200-sxm"\n')
    with pytest.raises(GapscopeError, match="has the name of a packaged preset: give it another"):
        load_part("h100-sxm", folders)
    assert load_part("mi300x", folders) == load_part("mi300x")  # it is in nobody else's way
    (folders[0] / "parts" / "h100-sxm.toml").unlink()
    write(folders, "parts/mine.toml", 'extends = "h200-sxm"\n')
    other = tmp_path / "other"
    (other / "parts").mkdir(parents=True)
    (other / "parts" / "mine.toml").write_text('extends = "h200-sxm"\n', encoding="utf-8")
    assert load_part("mine", [*folders, other]).hbm_gib == 141
    (other / "parts" / "mine.toml").write_text('extends = "h100-sxm"\n', encoding="utf-8")
    with pytest.raises(GapscopeError, match="have one name and differ"):
        load_part("mine", [*folders, other])
