"""GemFilter for causal language models of ``transformers``, in plain PyTorch."""

import torch
from torch.nn import functional as F


class Found(Exception):
    """Carries the scores out of the filter layer; the layers behind it do not run."""


@torch.no_grad()
def generate_from_gems(model, input_ids, k=1024, layer=13, **generation):
    """Select k of the tokens (1, n) by the filter layer, counted from 0, and generate."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward
    from transformers.masking_utils import sdpa_mask

    shape, usual = tuple(getattr(input_ids, "shape", ())), model.config._attn_implementation
    if len(shape) != 2 or shape[0] != 1 or shape[1] < 1 or k < 1 or model.training:
        raise ValueError(f"expected eval mode, k >= 1, one prompt (1, n), got {model.training=}, {k=}, {shape=}")

    def attend(module, query, key, value, mask, softcap=None, s_aux=None, sliding_window=None, **options):
        if softcap or s_aux is not None or (sliding_window or shape[1]) < shape[1]:
            raise ValueError(f"expected full attention without soft caps or sinks, got {type(model).__name__}")
        if module.layer_idx == layer:
            key = repeat_kv(key, query.shape[1] // key.shape[1])  # grouped queries
            raise Found((query[:, :, -1:] @ key.mT).sum(1))  # (1, 1, n)
        return sdpa_attention_forward(module, query, key, value, mask, **options)

    AttentionInterface.register("gems", attend)
    AttentionMaskInterface.register("gems", sdpa_mask)
    model.set_attn_implementation("gems")
    try:
        model(input_ids, use_cache=False)
        raise ValueError(f"expected a model with an attention interface and layer {layer}, got {type(model).__name__}")
    except Found as found:
        scores = F.avg_pool1d(found.args[0].float(), 5, 1, 2)[0, 0]
    finally:
        model.set_attn_implementation(usual)
    kept = scores.topk(min(k, len(scores))).indices.sort().values
    gems = input_ids[:, kept]
    return model.generate(gems, attention_mask=torch.ones_like(gems), do_sample=False, **generation), kept
