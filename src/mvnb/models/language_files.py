"""Reading language models from files: GGUF (one file, quantised weights) and Hugging Face folders of the Llama family."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_NAMES = {  # GGUF's names of a layer's weights, and Hugging Face's
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TOP = {"token_embd": "embed_tokens", "output_norm": "norm", "output": "lm_head"}


class Parts(NamedTuple):
    """What a file holds: numbers of the architecture, weights under Hugging Face's short names, and a tokenizer."""

    name: str
    shape: dict[str, Any]
    weights: dict[str, Tensor]
    tokenizer: Any


class _Bytes:
    """A file in memory, read from the front."""

    def __init__(self, path: Path):
        self.raw, self.at = memoryview(np.memmap(path, np.uint8, "r")), 0

    def number(self, code: str):
        (value,) = struct.unpack_from("<" + code, self.raw, self.at)
        self.at += struct.calcsize(code)
        return value

    def text(self) -> str:
        length = self.number("Q")
        self.at += length
        return bytes(self.raw[self.at - length : self.at]).decode()

    def value(self, kind: int):
        if kind == _STRING:
            return self.text()
        if kind == _ARRAY:
            kind, length = self.number("I"), self.number("Q")
            return [self.value(kind) for _ in range(length)]
        return self.number(_SCALARS[kind])


def read_gguf(path: Path) -> Parts:
    """A Llama in GGUF with byte-level BPE. Queries and keys come back in the order of halves that Hugging Face uses.

    The format is read here and not by ``gguf.GGUFReader``, which takes five seconds for a vocabulary; that package's part is to
    undo the quantisation. ``ValueError`` for another format, architecture or tokenizer.
    """
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize

    file = _Bytes(path)
    if bytes(file.raw[:4]) != b"GGUF":
        raise ValueError(f"{path.name} is not a GGUF file")
    file.at = 8
    n_tensors, n_fields = file.number("Q"), file.number("Q")
    meta = {file.text(): file.value(file.number("I")) for _ in range(n_fields)}
    if meta["general.architecture"] != "llama" or meta["tokenizer.ggml.model"] != "gpt2":
        raise ValueError(f"{path.name} must be a Llama with byte-level BPE, not {meta['general.architecture']}")
    index = [
        (file.text(), [file.number("Q") for _ in range(file.number("I"))], file.number("I"), file.number("Q"))
        for _ in range(n_tensors)
    ]
    step = meta.get("general.alignment", 32)
    start, heads = -(-file.at // step) * step, {"attn_q": "head_count", "attn_k": "head_count_kv"}
    weights = {}
    for name, shape, kind, offset in index:
        block, size = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
        stored = np.frombuffer(file.raw, np.uint8, int(np.prod(shape)) // block * size, start + offset)
        rows = stored.reshape(*shape[:0:-1], -1)  # shapes are stored last axis first
        weight = torch.from_numpy(dequantize(rows, GGMLQuantizationType(kind)).astype(np.float32).reshape(shape[::-1]))
        layer, _, rest = name.removeprefix("blk.").partition(".") if name.startswith("blk.") else ("", "", name)
        key = rest.removesuffix(".weight")
        if key in heads:  # GGUF has the two halves of a rotated pair side by side
            n = meta[f"llama.attention.{heads[key]}"]
            weight = weight.view(n, -1, 2, weight.shape[-1]).transpose(1, 2).reshape(weight.shape)
        weights[f"{layer}.{_NAMES[key]}" if layer else _TOP[key]] = weight
    shape = {
        "n_layers": meta["llama.block_count"],
        "n_heads": meta["llama.attention.head_count"],
        "n_kv_heads": meta["llama.attention.head_count_kv"],
        "rope_base": meta["llama.rope.freq_base"],
        "epsilon": meta["llama.attention.layer_norm_rms_epsilon"],
    }
    return Parts(meta.get("general.name", path.stem), shape, weights, _bpe(meta))


def _bpe(meta: dict[str, Any]):
    """The tokenizer of SmolLM: digits one by one, the rest by GPT-2's pattern, then merges of bytes."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens, kinds = meta["tokenizer.ggml.tokens"], meta["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ", 1)) for merge in meta["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    digits = [pre_tokenizers.Digits(individual_digits=True)] if meta.get("tokenizer.ggml.pre") == "smollm" else []
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    control = 3
    tokenizer.add_special_tokens([AddedToken(t, normalized=False) for t, kind in zip(tokens, kinds) if kind == control])
    return tokenizer


def read_folder(folder: Path) -> Parts:
    """A folder as Hugging Face saves it, with ``config.json``, ``tokenizer.json`` and ``*.safetensors``; Llamas only.

    ``ValueError`` for another architecture, ``FileNotFoundError`` when a file is missing.
    """
    from safetensors.torch import load_file
    from tokenizers import Tokenizer

    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if config.get("model_type") != "llama" or rope.get("rope_type", "default") != "default":
        raise ValueError(f"{folder.name} must be a Llama with plain rotary positions, not {config.get('model_type')!r}")
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise FileNotFoundError(f"there is no *.safetensors in {folder}")
    stored = {k: v for file in files for k, v in load_file(file).items()}
    weights = {k.removeprefix("model.").removeprefix("layers.").removesuffix(".weight"): v for k, v in stored.items()}
    shape = {
        "n_layers": config["num_hidden_layers"],
        "n_heads": config["num_attention_heads"],
        "n_kv_heads": config.get("num_key_value_heads", config["num_attention_heads"]),
        "rope_base": rope.get("rope_theta", config.get("rope_theta", 10000.0)),
        "epsilon": config["rms_norm_eps"],
    }
    return Parts(folder.name, shape, weights, Tokenizer.from_file(str(folder / "tokenizer.json")))
