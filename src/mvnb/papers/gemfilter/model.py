"""A layer by hand that finds, and a small Llama with such a layer."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mvnb.papers.gemfilter import token_selection as ts
from mvnb.papers.gemfilter.data import VOCABULARY


def hand_made_scores(tokens: Tensor) -> Tensor:
    """Return the scores ``(layer, n)`` of the last query in two layers by hand, which attend to the predecessor and to matches.

    The second layer's query is the last token's identity and its keys are those of the predecessors: an induction head.
    """
    n = tokens.shape[-1]
    identity, place = F.one_hot(tokens, VOCABULARY).double(), torch.eye(n, dtype=torch.double)
    before = torch.cat([torch.zeros(1, VOCABULARY).double(), identity[:-1]])
    to_previous = ts.row_scores(place.roll(-1, 1)[None, None], place[None, None])
    induction = ts.row_scores(identity[None, None], before[None, None])
    return torch.cat([to_previous, induction]) - 1e-6 * torch.arange(n)  # of equal scores, the earlier place


def small_llama(g: torch.Generator) -> Any:
    """Return an untrained Llama of two layers; in layer 1 a token has the key of its predecessor."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 2}
    sizes |= dict.fromkeys(["bos_token_id", "eos_token_id", "pad_token_id"])
    model = LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, num_hidden_layers=2, **sizes)).eval()
    for name, weight in model.named_parameters():  # branches start small beside tokens
        if weight.dim() > 1:
            scale = 0.1 if "o_proj" in name or "down_proj" in name else 1.0
            std = 1.0 if "embed" in name else scale * weight.shape[-1] ** -0.5
            weight.data = std * torch.randn(weight.shape, generator=g)
    attention, last = model.model.layers[1].self_attn, {}
    attention.k_proj.weight.data = attention.q_proj.weight.data.clone()

    def of_predecessor(layer, args, keys):
        one_more = keys.shape[1] == 1  # (batch, place, width)
        before = last["key"] if one_more else torch.zeros_like(keys[:, :1])
        last["key"] = keys[:, -1:].detach()
        return torch.cat([before, keys[:, :-1]], 1)

    attention.k_proj.register_forward_hook(of_predecessor)
    return model
