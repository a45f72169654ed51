"""The shape of a model from its Hugging Face ``config.json``, whoever wrote it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.deployment.fields import Fields
from engine.deployment.hf_attention import attention_of, linear_of, sparse_of, windows_of
from engine.deployment.hf_experts import experts_of
from engine.deployment.hf_formats import formats_of
from engine.deployment.model import ModelShape
from engine.deployment.reading import read_record
from engine.deployment.sound import check_model
from engine.errors import GapscopeError

_NESTED = ("text_config", "language_config", "llm_config", "thinker_config")
_SIGNS = ("architectures", "model_type", "num_hidden_layers", *_NESTED)
_BEYOND = {
    "mamba_d_state": "state-space layers",
    "ssm_state_size": "state-space layers",
    "state_size": "state-space layers",
    "mamba_num_heads": "state-space layers",
    "hybrid_override_pattern": "state-space layers",
    "num_kv_shared_layers": "layers that share the KV of others",
    "encoder_layers": "an encoder",
    "num_encoder_layers": "an encoder",
    "hybrid_layer_pattern": "window layers with other heads than the rest",
}
"""What a config says when its model has layers that a ``ModelShape`` cannot hold."""
_UNGATED = (
    *("biogpt", "bloom", "codegen", "falcon", "gpt2", "gpt_bigcode", "gpt_neo", "gpt_neox", "gptj", "mpt", "nemotron"),
    *("opt", "persimmon", "phi", "starcoder2", "xglm"),
)
_ENCODERS = ("electra", "ernie", "esm", "fnet", "funnel", "longformer", "mpnet", "nezha", "xlm", "xlnet", "yoso")
"""Families that predict no next token, beside those with bert in their name."""
MOST_LAYERS = 10_000


def is_huggingface(values: Mapping[str, Any]) -> bool:
    """Whether a mapping looks like a ``config.json`` rather than a preset."""
    return any(key in values for key in _SIGNS)


def from_huggingface(config: Mapping[str, Any], name: str | None = None) -> ModelShape:
    """The model that a ``config.json`` describes; ``sources`` says what it did not state and was assumed.

    Args:
        config: the file's content; the text model may be nested (``text_config``).
        name: what to call it; without one the config's own ``_name_or_path`` or ``model_type``.

    Raises:
        GapscopeError: something is missing or contradicts itself, or the model has layers of a kind that is not priced.
    """
    called = name or str(config.get("_name_or_path") or "").rstrip("/").rpartition("/")[2] or config.get("model_type")
    where = f"The Hugging Face config of {called or 'a model'}"
    shape = read_record(ModelShape, shape_mapping(config, where), where, name=str(called or "model"))
    return check_model(shape, where)


def shape_mapping(config: Mapping[str, Any], where: str) -> dict[str, Any]:
    """What a ``config.json`` says, in the words of a model preset.

    Raises:
        GapscopeError: as ``from_huggingface``.
    """
    fields = Fields(_text_model(config), where)
    for key, what in _BEYOND.items():
        if fields.raw(key):
            raise GapscopeError(f"{where} has {key}, which means {what}: expected a decoder of attention layers only.")
    family = str(fields.raw("model_type") or "")
    _check_decoder(fields, family)
    if family in _UNGATED:
        raise fields.refuse(f"{family} has MLPs of two projections, expected gate, up and down")
    layers = fields.count("num_hidden_layers", "n_layer", "num_layers", "n_layers")
    if not 1 <= layers <= MOST_LAYERS:
        raise fields.refuse(f"{layers:,} layers, expected from 1 to {MOST_LAYERS:,}")
    shape: dict[str, Any] = {
        "hidden": fields.count("hidden_size", "n_embd", "d_model", "dim"),
        "layers": layers,
        "vocab": fields.count("vocab_size", "padded_vocab_size"),
        "attention": attention_of(fields),
        **windows_of(fields, layers),
        **experts_of(fields, layers),
        "tied_embeddings": _tied(fields),
        "mtp_layers": _mtp_layers(fields),
        "max_context": fields.maybe("max_position_embeddings", "model_max_length", "seq_length", "n_positions"),
        **formats_of(fields),
    }
    for key, value in (("linear", linear_of(fields, layers)), ("sparse", sparse_of(fields, layers))):
        if value:
            shape[key] = value
    return shape | {"sources": {"*": "config.json"} | fields.notes}


def _check_decoder(fields: Fields, family: str) -> None:
    """Refuse encoders. ``is_decoder`` false says nothing: configs that are written in full have it of decoders too."""
    named = fields.raw("architectures")
    heads = [str(name) for name in (named if isinstance(named, list) else [named])]
    masked = [name for name in heads if name.endswith("ForMaskedLM")]
    if fields.raw("is_encoder_decoder") is True:
        raise fields.refuse("is_encoder_decoder is true, expected a decoder of attention layers only")
    if masked or family in _ENCODERS or ("bert" in family and "decoder" not in family):
        what = (masked or [family])[0][:40]
        raise fields.refuse(f"{what} is an encoder, expected a decoder of attention layers only")


def _text_model(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config of the decoder; what the outer one alone says (quantisation, tying) stands beside it."""
    for key in _NESTED:
        inner = config.get(key)
        if isinstance(inner, Mapping) and inner:
            outer = {k: v for k, v in config.items() if not isinstance(v, Mapping) or k == "quantization_config"}
            return _text_model(outer | dict(inner) | {"outer_type": config.get("model_type")})
    return dict(config)


def _tied(fields: Fields) -> bool:
    value = fields.raw("tie_word_embeddings")
    if isinstance(value, bool):
        return value
    tied = str(fields.raw("model_type") or "").startswith("gemma")
    fields.note("tied_embeddings", f"tie_word_embeddings is not stated: taken as {'true' if tied else 'false'}")
    return tied


def _mtp_layers(fields: Fields) -> int:
    direct = fields.maybe("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers", "mtp_num_layers")
    if direct is not None:
        return direct
    if fields.raw("use_mtp") is False:
        return 0
    return (fields.maybe("num_mtp_modules") or 0) * (fields.maybe("mtp_transformer_layers") or 1)
