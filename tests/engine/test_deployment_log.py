"""What engines log of their memory: every wording, several processes, and the comparison component by component."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.deployment import Deployment, load_model, load_part
from engine.deployment.engine_log import LoggedMemory, read_memory_log
from engine.deployment.log_comparison import ComparedRow, LogComparison, compare_log
from engine.errors import GapscopeError

GIB = 1 << 30
LLAMA = Deployment(load_model("llama-3.1-8b"), load_part("h100-sxm"))
LLAMA_WEIGHTS = 2 * 8_030_261_248 / GIB

VLLM = """\
INFO 03-14 09:12:41 [gpu_model_runner.py:1273] Starting to load model meta-llama/Llama-3.1-8B-Instruct...
INFO 03-14 09:12:55 [gpu_model_runner.py:1289] Model loading took 14.9888 GiB and 13.204526 seconds
INFO 03-14 09:13:07 [gpu_worker.py:227] Memory profiling takes 11.85 seconds
the current vLLM instance can use total_gpu_memory (79.11GiB) x gpu_memory_utilization (0.90) = 71.20GiB
model weights take 14.99GiB; non_torch_memory takes 0.35GiB; PyTorch activation peak memory takes 1.24GiB; \
the rest of the memory reserved for KV Cache is 54.62GiB.

INFO 03-14 09:13:08 [kv_cache_utils.py:566] GPU KV cache size: 447,088 tokens
INFO 03-14 09:13:08 [kv_cache_utils.py:570] Maximum concurrency for 32,768 tokens per request: 13.64x
INFO 03-14 09:13:30 [gpu_model_runner.py:2000] Graph capturing finished in 20 secs, took 0.54 GiB
"""

SGLANG = """\
[2025-03-25 16:36:58 TP0] Load weight begin. avail mem=78.60 GB
[2025-03-25 16:37:06 TP0] Load weight end. type=LlamaForCausalLM, dtype=torch.bfloat16, avail mem=63.48 GB, mem \
usage=15.11 GB.
[2025-03-25 16:37:06 TP0] KV Cache is allocated. #tokens: 442750, K size: 27.02 GB, V size: 27.02 GB
[2025-03-25 16:37:06 TP0] Memory pool end. avail mem=8.34 GB
[2025-03-25 16:37:20 TP0] Capture cuda graph end. Time elapsed: 6.57 s. mem usage=1.50 GB. avail mem=6.84 GB.
[2025-03-25 16:37:20 TP0] max_total_num_tokens=442750, chunked_prefill_size=8192, max_prefill_tokens=16384, \
max_running_requests=2049, context_len=131072
"""


def read(text: str) -> LoggedMemory:
    return read_memory_log(text.splitlines(keepends=True))


def by_name(found: LogComparison) -> dict[str, ComparedRow]:
    return {row.component: row for row in found.rows}


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("Model loading took 14.99 GiB memory and 11.42 seconds", {"weights_gib": 14.99}),
        ("Loading model weights took 14.2978 GB and 11.40 seconds", {"weights_gib": 14.2978}),
        (
            "Initial free memory: 23.08 GiB; Requested memory: 0.80 (util), 18.82 GiB",
            {"fraction": 0.8, "usable_gib": 18.82},
        ),
        (
            "Memory profiling takes 14.40 seconds. Total non KV cache memory: 10.22GiB; torch peak memory increase: "
            "1.40GiB; non-torch forward increase memory: 0.02GiB; weights memory: 8.80GiB.",
            {"activation_gib": 1.4, "non_torch_gib": 0.02, "weights_gib": 8.8},
        ),
        ("[gpu_worker.py:298] Available KV cache memory: 8.60 GiB", {"kv_pool_gib": 8.6}),
        (
            "GPU KV cache size: 394,633 tokens, Maximum concurrency for 10,240 tokens per request: 38.54x",
            {"kv_tokens": 394_633, "context": 10_240, "sequences": 38.54},
        ),
        ("# cuda blocks: 80126, # CPU blocks: 2048", {"blocks": 80_126}),
        ("# GPU blocks: 27943, # CPU blocks: 2048", {"blocks": 27_943}),
        ("Engine 000: vllm cache_config_info with initialization after num_gpu_blocks is: 29751", {"blocks": 29_751}),
        ("Chunked prefill is enabled with max_num_batched_tokens=2048.", {"token_budget": 2048}),
        ("Estimated CUDA graph memory: 0.84 GiB total", {"graphs_estimated_gib": 0.84}),
        (
            "CUDA graph pool memory: 0.91 GiB (actual), 0.84 GiB (estimated), difference: 0.07 GiB (7.7%).",
            {"graphs_gib": 0.91, "graphs_estimated_gib": 0.84},
        ),
        (
            "Free memory on device (267.08/267.69 GiB) on startup. Desired GPU memory utilization is (0.92, 246.27 "
            "GiB). Actual usage is 156.32 GiB for weight, 2.99 GiB for peak activation, 0.23 GiB for non-torch memory, "
            "and 3.06 GiB for CUDAGraph memory. Replace gpu_memory_utilization config with "
            "`--kv-cache-memory=89686801859` (83.53 GiB) to fit into requested memory. Current kv cache memory in "
            "use is 86.74 GiB.",
            {
                "hbm_gib": 267.69,
                "fraction": 0.92,
                "usable_gib": 246.27,
                "weights_gib": 156.32,
                "activation_gib": 2.99,
                "non_torch_gib": 0.23,
                "graphs_gib": 3.06,
                "kv_pool_gib": 86.74,
            },
        ),
        (
            "Actual usage is 171.25 GiB for consumed memory (weights + non-torch), 36.74 GiB for peak activation, and "
            "8.57 GiB for CUDAGraph memory.",
            {"consumed_gib": 171.25, "activation_gib": 36.74, "graphs_gib": 8.57},
        ),
        ("server_args=ServerArgs(model_path='m', mem_fraction_static=0.88, tp_size=8)", {"fraction": 0.88}),
        (
            "KV Cache is allocated. dtype: torch.bfloat16, #tokens: 295950, KV size: 186.77 GB",
            {"kv_tokens": 295_950, "kv_pool_gib": 186.77},
        ),
        ("KV Cache is allocated. K size: 27.13 GB, V size: 27.13 GB.", {"kv_pool_gib": 54.26}),
        (
            "Mamba Cache is allocated. max_mamba_cache_size: 360, conv_state size: 0.99GB, ssm_state size: 50.77GB",
            {"states": 360, "state_gib": 51.76},
        ),
        (
            "Capture target decode CUDA graph end. elapsed=25.74 s, mem usage=2.66 GB, avail mem=24.45 GB.",
            {"graphs_gib": 2.66},
        ),
    ],
)
def test_every_wording_is_read(line: str, values: dict[str, float]) -> None:
    assert read(line).values == pytest.approx(values)


def test_lines_that_say_nothing_are_counted() -> None:
    found = read(VLLM)
    assert (found.engine, found.lines, found.used, found.unused) == ("vllm", 8, 6, 2)  # the empty line is none
    assert found.values["weights_gib"] == 14.9888  # the first that says it


def test_captures_add_up_and_a_draft_models_lines_come_second() -> None:
    more = SGLANG + (
        "[2025-03-25 16:37:21 TP0] Load weight end. type=LlamaEagle, avail mem=5.84 GB, mem usage=1.00 GB.\n"
        "[2025-03-25 16:37:22 TP0] KV Cache is allocated. #tokens: 442750, K size: 0.80 GB, V size: 0.80 GB\n"
        "[2025-03-25 16:37:25 TP0] Capture draft decode CUDA graph end. elapsed=1.2 s, mem usage=0.25 GB.\n"
    )
    values = read(more).values
    assert (values["weights_gib"], values["kv_pool_gib"], values["graphs_gib"]) == (15.11, 54.04, 1.75)


def test_processes_are_told_apart() -> None:
    text = "".join(
        f"(Worker_TP{rank} pid={100 + rank}) INFO [gpu_worker.py:298] Available KV cache memory: {18 - rank / 10} GiB\n"
        for rank in range(4)
    )
    found = read(text)
    assert (found.values["kv_pool_gib"], found.ranges) == (17.7, {"kv_pool_gib": (17.7, 18.0)})
    same = "".join(f"[2026-02-26 05:35:08 TP{rank}] Load weight end. mem usage=89.58 GB.\n" for rank in range(8))
    assert read(same).ranges == {}


def test_a_log_of_something_else_is_refused() -> None:
    with pytest.raises(GapscopeError, match=r"None of the 2 lines says .* expected a start-up log of vLLM"):
        read("hello\n\nGiB tokens\n")


def test_vllm_row_by_row() -> None:
    found = compare_log(LLAMA, read(VLLM), token_budget=2048)
    rows = by_name(found)
    assert (rows["HBM capacity"].predicted, rows["HBM capacity"].logged) == (80, 79.11)
    assert rows["usable memory"].predicted == pytest.approx(0.9 * 79.11)
    assert rows["weights"].predicted == pytest.approx(LLAMA_WEIGHTS)
    assert rows["weights"].state == "agrees"
    assert rows["activations"].predicted == 503_316_480 / GIB
    assert rows["activations"].state == "differs"
    assert rows["outside PyTorch"].state == rows["graphs"].state == "not modelled"
    # 71.20 - 14.9888 - 1.24 - 0.35, all of them logged: what is wrong with activations is not wrong with the pool.
    assert rows["KV pool"].predicted == pytest.approx(54.6212)
    assert rows["KV pool"].given == ("usable memory", "weights", "activations", "outside PyTorch")
    assert rows["KV per token"].predicted == 131_072
    assert rows["KV per token"].logged == pytest.approx(54.62 * GIB / 447_088)
    blocks = int(54.62 * GIB // (16 * 131_072))
    assert (rows["KV tokens"].predicted, rows["KV blocks"].predicted) == (16 * blocks, blocks)
    assert (rows["KV blocks"].logged, rows["KV blocks"].state) == (None, "not logged")
    assert rows["sequences of 32,768"].predicted == pytest.approx(54.62 / 4)
    assert rows["sequences of 32,768"].difference == pytest.approx(54.62 / 4 - 13.64)
    assert (found.engine, found.lines, found.unused, found.ranges) == ("vllm", 8, 2, {})


def test_one_wrong_component_is_the_only_row_that_differs() -> None:
    """Two gibibytes more weights than the model has, and a pool that is smaller by them."""
    text = VLLM.replace("14.9888", "16.9888").replace("54.62GiB", "52.62GiB").replace("447,088", "430,704")
    rows = by_name(compare_log(LLAMA, read(text.replace("13.64x", "13.14x")), token_budget=2048))
    differing = {name for name, row in rows.items() if row.state == "differs"}
    assert differing == {"weights", "activations"}


def test_sglangs_share_holds_weights_and_kv() -> None:
    rows = by_name(compare_log(LLAMA, read(SGLANG), memory_fraction=0.88))
    assert rows["KV pool"].predicted == pytest.approx(0.88 * 78.60 - 15.11)
    assert rows["KV pool"].state == "agrees"
    assert rows["KV pool"].given == ("memory before loading", "weights")
    assert rows["KV per token"].share == pytest.approx(131_072 / (54.04 * GIB / 442_750) - 1)
    assert rows["KV tokens"].state == "agrees"
    assert rows["graphs"].logged == 1.5


def test_without_a_share_nothing_rests_on_one() -> None:
    rows = by_name(compare_log(LLAMA, read(SGLANG)))
    assert "usable memory" not in rows
    assert (rows["KV pool"].predicted, rows["KV pool"].state) == (None, "not modelled")
    assert rows["KV tokens"].state == "agrees"  # rests on the pool that is logged


def test_what_is_consumed_beside_the_weights_is_outside_pytorch() -> None:
    text = (
        "Model loading took 9.96 GiB memory and 78.06 seconds\n"
        "Desired GPU memory utilization is (0.7, 16.8 GiB).\n"
        "Actual usage is 10.7 GiB for consumed memory (weights + non-torch), 1.54 GiB for peak activation, and 0.54 "
        "GiB for CUDAGraph memory.\n"
        "Current kv cache memory in use is 4.55 GiB.\n"
    )
    rows = by_name(compare_log(LLAMA, read(text)))
    assert rows["outside PyTorch"].logged == pytest.approx(0.74)
    assert rows["KV pool"].predicted == pytest.approx(16.8 - 10.7 - 1.54)


def test_graphs_that_were_estimated_are_set_aside() -> None:
    text = VLLM + "CUDA graph pool memory: 0.54 GiB (actual), 0.79 GiB (estimated), difference: 0.25 GiB (46 %).\n"
    rows = by_name(compare_log(LLAMA, read(text), graphs_gib=0.5))
    assert rows["KV pool"].predicted == pytest.approx(54.6212 - 0.79)
    assert (rows["graphs"].predicted, rows["graphs"].logged, rows["graphs"].state) == (0.5, 0.54, "differs")


def test_windows_make_a_token_cheaper_the_longer_the_sequence() -> None:
    deployment = Deployment(load_model("gpt-oss-20b"), load_part("h100-sxm"), expert_dtype="mxfp4")
    full = 12 * 8 * 2 * 64 * 2
    sequence = full * (131_072 + 128)
    pool = 50.0
    tokens = int(pool * GIB / sequence * 131_072)
    text = (
        f"Available KV cache memory: {pool} GiB\nGPU KV cache size: {tokens:,} tokens, "
        f"Maximum concurrency for 131,072 tokens per request: {pool * GIB / sequence:.2f}x\n"
    )
    rows = by_name(compare_log(deployment, read(text)))
    assert rows["KV per token"].predicted == pytest.approx(sequence / 131_072)
    assert {rows[name].state for name in ("KV per token", "KV tokens", "sequences of 131,072")} == {"agrees"}
    assert rows["KV tokens"].predicted == tokens


def test_linear_states_are_those_of_the_slots() -> None:
    deployment = Deployment(load_model("qwen3.5-35b-a3b"), load_part("h200-sxm"))
    each = 30 * (32 * 128 * 128 * 4 + (2 * 16 + 32) * 128 * 3 * 2)
    text = "Mamba Cache is allocated. max_mamba_cache_size: 48, conv_state size: 0.07GB, ssm_state size: 2.81GB\n"
    rows = by_name(compare_log(deployment, read(text)))
    assert rows["linear state"].predicted == pytest.approx(48 * each / GIB)
    assert rows["linear state"].state == "agrees"
    assert rows["linear state"].given == ("number of states",)


def test_a_tolerance_below_zero_is_refused() -> None:
    for tolerance in (-0.1, float("nan")):
        with pytest.raises(GapscopeError, match="A tolerance of"):
            compare_log(LLAMA, read(VLLM), tolerance=tolerance)


@given(st.lists(st.sampled_from(VLLM.splitlines() + SGLANG.splitlines()) | st.text(max_size=200), max_size=20))
def test_any_lines_are_read_or_refused(lines: list[str]) -> None:
    try:
        found = read_memory_log(lines)
    except GapscopeError:
        return
    assert 0 < found.used <= found.lines
    assert set(found.ranges) <= set(found.values)
