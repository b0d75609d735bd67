"""Closed forms of chapter 15 against Monte Carlo, counted operations and caches."""

import numpy as np
import pytest
import torch
import transformers

from mvnb.papers.gemfilter import theory
from mvnb.papers.gemfilter import token_selection as ts


def noise(n, draws, sigma, seed=0):
    return sigma * np.random.default_rng(seed).standard_normal((draws, n))


@pytest.mark.parametrize(("margin", "sigma", "n", "k"), [(1.5, 1.0, 200, 10), (2.0, 0.8, 500, 5), (0.5, 1.0, 100, 40)])
def test_finding_probability_is_the_share_of_draws_that_find(margin, sigma, n, k):
    scores = noise(n, 20_000, sigma)
    found = ((scores > margin).sum(1) < k).mean()
    assert found == pytest.approx(float(theory.finding_probability(margin, sigma, n, k)), abs=0.015)


def test_finding_margin_is_where_about_half_are_found_and_below_its_bound():
    for n, k in ((1000, 10), (100_000, 1000), (10**6, 100)):
        margin = theory.finding_margin(1.3, n, k)
        assert abs(theory.finding_probability(margin, 1.3, n, k) - 0.5) < 0.5 / np.sqrt(k) + 1e-9
        assert 0 < margin <= 1.3 * np.sqrt(2 * np.log(n / k))
    assert theory.finding_probability(-50.0, 1.0, 10, 11) == 1 and theory.finding_probability(50.0, 1.0, 10, 1) == 1
    assert theory.finding_probability(0.0, 1.0, 10, 10) == pytest.approx(1 - 2.0**-10)


@pytest.mark.parametrize(("margin", "sigma", "n"), [(6.0, 1.0, 500), (9.0, 0.7, 3000)])
def test_reading_share_bounds_the_mean_share_and_is_close(margin, sigma, n):
    share = 1 / (1 + np.exp(noise(n, 4000, sigma) - margin).sum(1))
    stated = theory.reading_share(margin, sigma, n)
    assert stated - 3e-3 <= share.mean() <= stated + 0.02
    assert theory.reading_share(theory.reading_margin(sigma, n), sigma, n) == pytest.approx(0.5)


@pytest.mark.parametrize(("sigma", "n", "k"), [(1.0, 20_000, 200), (0.5, 20_000, 2000)])
def test_surviving_noise_is_what_the_largest_scores_weigh(sigma, n, k):
    weights = np.sort(np.exp(noise(n, 200, sigma)))
    kept = (weights[:, -k:].sum(1) / weights.sum(1)).mean()
    assert kept == pytest.approx(float(theory.surviving_noise(sigma, n, k)), rel=0.03)
    assert theory.surviving_noise(1e-9, n, k) == pytest.approx(k / n) and theory.surviving_noise(3.0, n, n) == 1


SHAPE = theory.Shape(4, 4, 2, 8, 32, 48)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4}
    config = transformers.LlamaConfig(vocab_size=11, num_key_value_heads=2, bos_token_id=None, eos_token_id=None, **sizes)
    return transformers.LlamaForCausalLM(config).eval()


def whole(model, tokens):
    return model.model(tokens, use_cache=False)


def test_flops_are_those_that_are_counted(model):
    tokens, longer = torch.zeros(1, 64, dtype=torch.long), torch.zeros(1, 128, dtype=torch.long)
    model.set_attn_implementation("eager")  # its products are plain matrices, which the counter knows on every device
    assert ts.counted_flops(lambda: whole(model, tokens)) == theory.prefill_flops(SHAPE, 64)
    assert ts.counted_flops(lambda: whole(model, longer)) == theory.prefill_flops(SHAPE, 128)
    model.set_attn_implementation("sdpa")


def test_weights_and_caches_have_the_sizes_stated(model):
    layer = sum(p.numel() for p in model.model.layers[0].parameters() if p.dim() == 2)
    assert layer == SHAPE.layer_weights and theory.LLAMA_31_8B.layer_weights == 218_103_808
    tokens = torch.randint(11, (1, 50), generator=torch.Generator().manual_seed(0))
    for k in (50, 12):
        kept = ts.read(model, tokens[:, :k]).cache
        assert sum(x.keys.numel() + x.values.numel() for x in kept.layers) == theory.cached_numbers(SHAPE, k)


def test_the_selection_stops_where_its_work_is_counted(model, monkeypatch):
    """A first pass runs ``layer`` feed-forward blocks and ``layer + 1`` times the projections."""
    ran = {"mlp": 0, "keys": 0}

    def tick(name):
        ran[name] += 1

    handles = [one.mlp.register_forward_hook(lambda *_: tick("mlp")) for one in model.model.layers]
    handles += [one.self_attn.k_proj.register_forward_hook(lambda *_: tick("keys")) for one in model.model.layers]
    ts.filter_scores(model, torch.zeros(1, 30, dtype=torch.long), [2])
    for handle in handles:
        handle.remove()
    assert ran == {"mlp": 2, "keys": 3}
    only = 2 * 30 * 32 * 8 * (4 + 2 * 2) + 2 * 30 * 4 * 8
    assert theory._selection_flops(SHAPE, 30, 2) - theory.prefill_flops(SHAPE, 30, 2) == only


def test_a_generated_token_costs_what_is_counted(model):
    model.set_attn_implementation("eager")
    for cached in (50, 12):
        _, kept, token, *_ = ts.read(model, torch.zeros(1, cached, dtype=torch.long))
        step = ts.counted_flops(lambda token=token, kept=kept: model.model(token, past_key_values=kept))
        assert step == theory.step_flops(SHAPE, cached)
    model.set_attn_implementation("sdpa")
    attention = [theory.step_flops(SHAPE, n - 1) - theory.step_flops(SHAPE, -1) for n in (1000, 10)]
    assert attention[0] / attention[1] == 100  # n : k, of the attention alone
    big = theory.LLAMA_31_8B
    assert theory.step_flops(big, 131_072) / theory.step_flops(big, 1024) == pytest.approx(5.7, abs=0.05)


def test_the_first_pass_through_all_layers_is_a_prefill_and_a_filter_layer():
    projections_and_row = 2 * 64 * 32 * 8 * (4 + 2 * 2) + 2 * 64 * 4 * 8
    assert theory._selection_flops(SHAPE, 64, SHAPE.n_layers) == theory.prefill_flops(SHAPE, 64) + projections_and_row
    for k in (64, 100):  # all is kept: the second pass is a whole prefill
        passes = theory._selection_flops(SHAPE, 64, 2) + theory.prefill_flops(SHAPE, 64)
        assert theory.speed_up(SHAPE, 64, k, 2) == theory.prefill_flops(SHAPE, 64) / passes


def test_the_papers_models_have_the_sizes_and_ratios_that_the_errata_state():
    speeds = [theory.speed_up(shape, 131_072, 1024, r) for shape, r in theory.PAPER_MODELS.values()]
    assert speeds == pytest.approx([2.45, 2.10, 1.68], abs=0.006)
    whole = [theory.speed_up(shape, 131_072, 1024, r, published=True) for shape, r in theory.PAPER_MODELS.values()]
    assert whole == pytest.approx([2.28, 1.99, 1.60], abs=0.006)
    assert all(speed < shape.n_layers / (r + 1) for speed, (shape, r) in zip(whole, theory.PAPER_MODELS.values()))
    big = theory.LLAMA_31_8B  # fourteen whole layers, and the second run
    passes = theory.prefill_flops(big, 131_072, 14) + theory.prefill_flops(big, 1024)
    assert whole[0] == theory.prefill_flops(big, 131_072) / passes
    ratios = [shape.n_layers / r for shape, r in theory.PAPER_MODELS.values()]
    assert all(speed < ratio for speed, ratio in zip(speeds, ratios)) and ratios == pytest.approx([2.46, 2.11, 1.68], abs=0.005)
    billions = [shape.n_layers * shape.layer_weights / 1e9 for shape, _ in theory.PAPER_MODELS.values()]
    assert billions == pytest.approx([6.98, 10.91, 3.62], abs=0.01)  # without embeddings
    crossing = []
    for shape, r in theory.PAPER_MODELS.values():
        one, weights, k, t = 2 * shape.n_kv_heads * shape.head_dim, shape.layer_weights, 1024, 50
        n = (shape.n_layers - r - 1) * weights / one + shape.n_layers * (k + t)
        second = shape.n_layers * (weights + one * (k + t))
        assert theory.peak_memory(shape, "GemFilter", 0.99 * n, k, t, r, loaded=False) == second
        assert theory.peak_memory(shape, "GemFilter", 1.01 * n, k, t, r, loaded=False) > second
        crossing.append(n)
    assert crossing == pytest.approx([1.95e6, 2.71e6, 2.56e5], rel=0.01)


def test_speed_up_tends_to_the_ratio_of_layers_and_memory_is_ordered():
    big = theory.LLAMA_31_8B
    assert theory.speed_up(big, 10**6, 1024, 13) == pytest.approx(32 / 13, rel=0.02)
    assert np.all(np.diff(theory.speed_up(big, 2 ** np.arange(11, 18), 1024, 13)) > 0)
    assert theory.speed_up(big, 1024, 1024, 13) < 1  # nothing to drop: the selection comes on top
    full, snap, gem, split = (
        theory.peak_memory(big, name, 131_072, 1024, 50, 13, loaded)
        for name, loaded in (("All KV", True), ("SnapKV", True), ("GemFilter", True), ("GemFilter", False))
    )
    assert full > snap > gem >= split
    assert theory.peak_memory(big, "SnapKV", 500, 1024, 50, 13) == pytest.approx(full - 2 * 32 * 8 * 128 * 130_572, rel=1e-3)
    with pytest.raises(ValueError, match="method must be"):
        theory.peak_memory(big, "StreamingLLM", 1, 1, 1, 1)
