"""GemFilter for causal language models of ``transformers``, in plain PyTorch."""

from torch.nn import functional as F


class Found(Exception):
    """Carries the scores out of the filter layer; the layers behind it do not run."""


def generate_from_gems(model, input_ids, k=1024, layer=13, **generation):
    """Select k of the tokens (1, n) by the filter layer, counted from 0, and generate."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward
    from transformers.masking_utils import sdpa_mask

    def attend(module, query, key, value, mask, **options):
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
        model.set_attn_implementation("sdpa")
    kept = scores.topk(min(k, len(scores))).indices.sort().values
    return model.generate(input_ids[:, kept], do_sample=False, **generation), kept
