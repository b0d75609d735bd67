"""The Transformer: masks, normalisation, stacks, and a reference written with PyTorch's own parts."""

import math

import pytest
import torch
from reference import Transformer
from torch.nn import functional as F

from mvnb import training
from mvnb.models import (
    AnswerObjective,
    TransformerObjective,
    initial_parameters,
    residual_stream,
    transformer_logits,
)
from mvnb.models.transformer import visible

SIZES = {"n_tokens": 11, "length": 7, "dim": 8, "n_layers": 3}


def parameters(replicas=1, seed=0, std=0.4):
    each = [initial_parameters(**SIZES, generator=g, std=std, dtype=torch.float64) for g in training.generators(seed, replicas)]
    return {k: torch.stack([one[k] for one in each]) for k in each[0]}


def tokens(replicas=1, n=4, seed=1):
    return torch.randint(11, (replicas, n, 7), generator=torch.Generator().manual_seed(seed))


def naive(params, x, prefix, n_heads, norm):
    """One sequence, one head and one query at a time."""
    h = params["embedding"][x] + params["positions"][: len(x)]

    def norm_of(v):
        return (v - v.mean(-1, keepdim=True)) / (v.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt()

    before = norm_of if norm == "pre" else lambda v: v
    after = norm_of if norm == "post" else lambda v: v
    size = h.shape[1] // n_heads
    for layer in range(len(params["layers.up"])):
        q, k, v = (before(h) @ params["layers.qkv"][layer]).split(h.shape[1], 1)
        out = torch.zeros_like(h)
        for query in range(len(x)):
            seen = [j for j in range(len(x)) if j <= query or j < prefix]
            for head in range(n_heads):
                part = slice(head * size, (head + 1) * size)
                weight = (k[seen, part] @ q[query, part] / math.sqrt(size)).softmax(0)
                out[query, part] = weight @ v[seen, part]
        h = after(h + out @ params["layers.out"][layer])
        h = after(h + F.relu(before(h) @ params["layers.up"][layer]) @ params["layers.down"][layer])
    return before(h) @ params["head"]


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("prefix", [0, 1, 3, 7, "each"])
def test_against_one_query_at_a_time(norm, prefix):
    params, x = parameters(2), tokens(2)
    each = torch.tensor([[0, 2, 7, 5], [1, 3, 0, 7]]) if prefix == "each" else prefix
    logits = transformer_logits(params, x, each, n_heads=2, norm=norm)
    for r in range(2):
        one = {k: v[r] for k, v in params.items()}
        for s in range(4):
            limit = int(each[r, s]) if prefix == "each" else prefix
            torch.testing.assert_close(logits[r, s], naive(one, x[r, s], limit, 2, norm))


@pytest.mark.parametrize("norm", ["pre", "post", "none"])
@pytest.mark.parametrize("prefix", [0, 3, 7])
def test_the_last_token_alone_is_the_last_of_all(norm, prefix):
    params, x = parameters(2), tokens(2)
    whole = transformer_logits(params, x, prefix, n_heads=2, norm=norm)
    torch.testing.assert_close(transformer_logits(params, x, prefix, n_heads=2, norm=norm, last=True), whole[:, :, -1:])


@pytest.mark.parametrize("norm", ["pre", "none"])
def test_answers_are_the_weighted_objective_with_one_weight(norm):
    params, x, answers = parameters(2), tokens(2), tokens(2, seed=3)[..., 0]
    loss, grads = AnswerObjective(2, norm)(params, x, answers)
    weights, targets = torch.zeros(2, 4, 7, dtype=torch.float64), torch.zeros(2, 4, 7, dtype=torch.long)
    weights[..., -1], targets[..., -1] = 1, answers
    same, expected = TransformerObjective(2, norm)(params, x, targets, weights, torch.full((2, 4), 7))
    torch.testing.assert_close(loss, same)
    for k, v in expected.items():
        torch.testing.assert_close(grads[k], v)


def test_nobody_looks_ahead_of_the_mask():
    params, x = parameters(), tokens()
    changed = x.clone()
    changed[..., 5] = (changed[..., 5] + 1) % 11
    for prefix, blind in ((0, 5), (3, 5), (6, 0), (7, 0)):
        before, after = (transformer_logits(params, y, prefix, n_heads=2)[0] for y in (x, changed))
        moved = (before - after).abs().amax((0, 2)) > 1e-12
        assert moved.tolist() == [place >= blind for place in range(7)]


def test_visible_names_the_three_masks():
    causal, prefix, all_see = visible(torch.tensor([0, 2, 4]), 4)
    assert torch.equal(causal, torch.ones(4, 4).tril().bool()) and all_see.all()
    assert prefix.sum(1).tolist() == [2, 2, 3, 4]


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_a_stack_trains_as_each_network_alone_and_as_autograd_through_the_module(norm):
    models = [Transformer(**SIZES, n_heads=2, generator=g, norm=norm, std=0.3) for g in training.generators(3, 2)]
    params = training.stack(models)
    x, y = tokens(2), tokens(2, seed=2)
    weights, prefix = (torch.rand(2, 4, 7, generator=torch.Generator().manual_seed(4)) + 0.1), torch.full((2, 4), 7)
    batch = (x, y, weights, prefix)
    together = training.fit(TransformerObjective(2, norm), params, batch, steps=3, optimizer=training.Adam(1e-2))
    for r, model in enumerate(models):
        alone = {k: v[r : r + 1] for k, v in params.items()}
        one = tuple(b[r : r + 1] for b in batch)
        run = training.fit(TransformerObjective(2, norm), alone, one, steps=3, optimizer=training.Adam(1e-2))
        for k, v in run.params.items():
            torch.testing.assert_close(v[0], together.params[k][r], atol=1e-5, rtol=1e-4)
        each = F.cross_entropy(model(x[r], prefix[r]).flatten(0, 1), y[r].flatten(), reduction="none")
        loss = (each * weights[r].flatten()).sum() / weights[r].sum()
        loss.backward()
        losses, grads = TransformerObjective(2, norm)(alone, *one)
        torch.testing.assert_close(losses[0], loss.detach())
        for k, p in model.named_parameters():
            torch.testing.assert_close(grads[k][0], p.grad, atol=1e-6, rtol=1e-4)


def test_the_causal_short_cut_is_the_mask():
    params, x = parameters(), tokens()
    zeros, ones = torch.zeros(1, 4, dtype=torch.long), torch.ones(1, 4, 7).double()
    for one, other in zip(
        TransformerObjective(2, causal=True)(params, x, x, ones, zeros), TransformerObjective(2)(params, x, x, ones, zeros)
    ):
        torch.testing.assert_close(one, other)


def test_pre_norm_keeps_the_stream_and_post_norm_normalises_it():
    params, x = parameters(), tokens()
    post = residual_stream(params, x, n_heads=2, norm="post")[0]
    torch.testing.assert_close(post.var(-1, unbiased=False), torch.ones(28).double(), atol=1e-3, rtol=0)
    pre = residual_stream(params, x, n_heads=2)[0]
    assert pre.var(-1, unbiased=False).std() > 1e-2
    shorter = transformer_logits(params, x[:, :, :4], n_heads=2)
    torch.testing.assert_close(shorter, transformer_logits(params, x, n_heads=2)[:, :, :4])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda g: TransformerObjective(2, "batch"), "'post' or 'none'"),
        (lambda g: transformer_logits(parameters(), torch.zeros(1, 1, 8, dtype=torch.long), n_heads=2), "up to 7 tokens"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call(torch.Generator().manual_seed(0))


def test_embeddings_may_have_a_scale_of_their_own():
    small, large = (
        initial_parameters(50, 40, 16, 2, torch.Generator().manual_seed(0), std=0.02, embedding_std=e) for e in (None, 1.0)
    )
    for name, value in small.items():
        factor = 50 if name in ("embedding", "positions") else 1
        torch.testing.assert_close(large[name], factor * value)
