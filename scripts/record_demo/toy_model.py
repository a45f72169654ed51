"""A small Llama without weights: ``python toy_model.py FOLDER`` writes its configuration and a tokenizer of words.

vLLM makes the weights up (``--load-format dummy``), so what it says is noise; what it computes per token is real.
"""

from __future__ import annotations

import json
import sys
from itertools import product
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

VOCABULARY = 8192
CONTEXT = 16384
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCABULARY,
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "hidden_act": "silu",
    "max_position_embeddings": CONTEXT,
    "initializer_range": 0.02,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
    "use_cache": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "torch_dtype": "float32",
}
SPECIAL = ["<pad>", "<s>", "</s>", "<unk>"]
ROLES = ["user", "assistant", "system", "tool", "developer"]
CHAT = (
    "{% for m in messages %}{{ m['role'] }} {{ m['content'] }} {% endfor %}"
    "{% if add_generation_prompt %}assistant {% endif %}"
)


def words() -> list[str]:
    """The vocabulary: special tokens, roles, printable characters, then words of two and three syllables."""
    syllables = [consonant + vowel for consonant, vowel in product("bcdfghjklmnprstvwz", "aeiou")]
    made = ("".join(parts) for count in (2, 3) for parts in product(syllables, repeat=count))
    found = dict.fromkeys([*SPECIAL, *ROLES, *map(chr, range(33, 127))])
    for word in made:
        if len(found) == VOCABULARY:
            break
        found[word] = None
    return list(found)


def write(folder: Path) -> None:
    """Write the model's files; they are the same every time."""
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = {word: number for number, word in enumerate(words())}
    tokenizer = Tokenizer(models.WordLevel(vocab=vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    # A space between tokens, so that ids become text and the same ids again.
    tokenizer.decoder = decoders.WordPiece(prefix="\u0000", cleanup=False)
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings: dict[str, dict[str, Any]] = {
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<s>",
            "eos_token": "</s>",
            "unk_token": "<unk>",
            "pad_token": "<pad>",
            "model_max_length": CONTEXT,
            "add_bos_token": False,
            "clean_up_tokenization_spaces": False,
            "chat_template": CHAT,
        },
        "generation_config.json": {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0},
        "config.json": CONFIG,  # last: where it lies, the others do
    }
    for name, content in settings.items():
        (folder / name).write_text(json.dumps(content, indent=1))


if __name__ == "__main__":
    write(Path(sys.argv[1]))
