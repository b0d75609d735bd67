"""Which tokens of a prompt are kept, and what models make of the rest: against full runs, masks and loops."""

import pytest
import torch
import transformers

from mvnb.papers.gemfilter import token_selection as ts
from mvnb.papers.gemfilter.recipe import generate_from_gems

SIZE = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4}
SIZE |= {"num_key_value_heads": 2, "head_dim": 8, "initializer_range": 0.6}
SIZE |= {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
KINDS = {
    "Llama": {},  # like most of them with two key heads for four query heads
    "Mistral": {"sliding_window": 48},
    "Qwen2": {},
    "Qwen3": {},
    "Phi3": {},
    "Gemma": {},
    "Gemma3": {
        "sliding_window": 48,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "tie_word_embeddings": False,
    },
    "Olmo2": {},
    "GPTNeoX": {"num_key_value_heads": None},
    "GPT2": {"n_embd": 32, "n_layer": 3, "n_head": 4},  # learned positions
}
NAMES = {"Gemma3": ("Gemma3TextConfig", "Gemma3ForCausalLM"), "GPT2": ("GPT2Config", "GPT2LMHeadModel")}


def tiny(kind, **changes):
    """A random model of this architecture."""
    torch.manual_seed(0)
    sizes = {name: value for name, value in (SIZE | KINDS.get(kind, {}) | changes).items() if value is not None}
    config, network = NAMES.get(kind, (f"{kind}Config", f"{kind}ForCausalLM"))
    return getattr(transformers, network)(getattr(transformers, config)(**sizes)).eval()


def n_key_heads(model):
    return 4 if type(model).__name__.startswith("GPT") else 2


@pytest.fixture(scope="module", params=KINDS)
def model(request):
    return tiny(request.param).double()


@pytest.fixture(scope="module")
def tokens():
    return torch.randint(3, 50, (2, 40), generator=torch.Generator().manual_seed(1))


def again(model, tokens, n_new):
    """Greedy answers without any cache."""
    with torch.inference_mode():
        for _ in range(n_new):
            tokens = torch.cat([tokens, model(tokens).logits[:, -1:].argmax(-1)], 1)
    return tokens[:, -n_new:]


def queries_and_keys(model, tokens):
    seen = {}
    with torch.inference_mode(), ts._watch_attention(model, lambda i, q, k, s: seen.update({i: (q, k, s)})):
        model(tokens)
    return seen


def test_watching_changes_nothing_and_sees_every_layer(model, tokens):
    usual = model.config._attn_implementation
    with torch.inference_mode():
        plain = model(tokens).logits
        seen = {}
        with ts._watch_attention(model, lambda layer, q, k, s: seen.update({layer: (q, k, s)})):
            watched = model(tokens).logits
    assert torch.allclose(plain, watched, atol=1e-3) and list(seen) == [0, 1, 2]
    assert model.config._attn_implementation == usual
    assert seen[0][0].shape == (2, 4, 40, 8) and seen[0][1].shape == (2, n_key_heads(model), 40, 8)


def test_row_scores_are_sums_over_repeated_heads(model, tokens):
    q, k, scaling = queries_and_keys(model, tokens)[1]
    repeated = torch.stack([k[:, h // (4 // n_key_heads(model))] for h in range(4)], 1)
    raw = sum(torch.einsum("bd,bjd->bj", q[:, h, -1], repeated[:, h]) for h in range(4))
    assert torch.allclose(ts.row_scores(q, k), raw.float(), atol=1e-4)
    soft = sum((torch.einsum("bd,bjd->bj", q[:, h, 20], repeated[:, h, :21]) * scaling).softmax(-1) for h in range(4))
    found = ts.row_scores(q, k, "middle", scaling)
    assert torch.allclose(found[:, :21], soft.float(), atol=1e-5) and not found[:, 21:].any()
    products = torch.einsum("bhid,bhjd->bij", q, repeated)
    for b in range(2):
        longest = max(range(40), key=lambda i: float(products[b, i].norm()))
        assert torch.allclose(ts.row_scores(q, k, "largest")[b], products[b, longest].float(), atol=1e-3)
    with pytest.raises(ValueError, match="row must be"):
        ts.row_scores(q, k, "first")


def test_selection_does_not_depend_on_scale_or_the_order_of_heads(model, tokens):
    q, k, _ = queries_and_keys(model, tokens)[1]
    chosen = ts.select_tokens(ts.row_scores(q, k), 9)
    assert torch.equal(chosen, ts.select_tokens(ts.row_scores(3 * q, k), 9))
    assert torch.equal(chosen, ts.select_tokens(ts.row_scores(q.flip(1), k.flip(1)), 9))
    inside = ts.row_scores(q, k)[:, 4:-4]  # away from the ends, where zeros are averaged in
    assert torch.equal(ts.select_tokens(inside, 9, 1), ts.select_tokens(inside + 5, 9, 1))


def test_filtering_runs_no_layer_after_the_last_one_it_needs(model, tokens, monkeypatch):
    whole = queries_and_keys(model, tokens)
    found = ts.filter_scores(model, tokens, [1, 0])
    for i, layer in enumerate((1, 0)):
        assert torch.allclose(found[i], ts.row_scores(*whole[layer][:2]), atol=1e-3)
    ran = []
    layers = getattr(model.base_model, "layers", None) or model.base_model.h
    handles = [layer.mlp.register_forward_hook(lambda *_, i=i: ran.append(i)) for i, layer in enumerate(layers)]
    ts.filter_scores(model, tokens, [1])
    for handle in handles:
        handle.remove()
    assert ran == [0]  # layer 1 stops at its attention
    assert model.config._attn_implementation != "mvnb_watched"


def test_selected_places_are_the_largest_averages_in_order():
    scores = torch.randn(3, 2, 30, generator=torch.Generator().manual_seed(0))
    chosen = ts.select_tokens(scores, 7)
    padded = torch.nn.functional.pad(scores, (2, 2))
    means = torch.stack([padded[..., i : i + 30] for i in range(5)]).mean(0)
    for row, mean in zip(chosen.view(6, 7), means.view(6, 30)):
        assert row.tolist() == sorted(row.tolist()) and set(row.tolist()) == set(mean.topk(7).indices.tolist())
    assert torch.equal(ts.select_tokens(scores, 50), torch.arange(30).expand(3, 2, 30))
    forced = ts.select_tokens(scores, 7, 1, keep_last=3)
    assert (forced[..., -3:] == torch.tensor([27, 28, 29])).all()
    assert ts.select_tokens(scores, 7, 1).view(6, 7)[0].tolist() == sorted(scores[0, 0].topk(7).indices.tolist())


def test_cached_answers_are_those_without_a_cache(model, tokens):
    answer = ts.all_kv(model, ts.read(model, tokens), 6)
    assert torch.equal(answer.tokens, again(model, tokens, 6)) and answer.kept.shape == (2, 40)


def test_with_room_for_everything_every_method_is_the_whole_model(model, tokens):
    whole = again(model, tokens, 6)
    for layer in range(3):
        assert torch.equal(ts.gem_filter(model, tokens, 6, 40, layer).tokens, whole)
    prompt = ts.read(model, tokens, 32, sums=True)
    for answer in (
        ts.one_run(model, prompt, 6, torch.arange(40).expand(2, -1)),
        ts.snap_kv(model, prompt, 6, 60),
        ts.h2o(model, prompt, 6, 60),
    ):
        assert torch.equal(answer.tokens, whole)


def test_rotary_scores_depend_on_differences_of_places_alone():
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

    rotary = LlamaRotaryEmbedding(transformers.LlamaConfig(**SIZE))
    q, k = torch.randn(2, 1, 4, 9, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def scores(first):
        angles = torch.arange(first, first + 9).double()[:, None] * rotary.inv_freq.double()
        angles = torch.cat([angles, angles], -1)[None]
        turned_q, turned_k = apply_rotary_pos_emb(q, k, angles.cos(), angles.sin())
        return turned_q @ turned_k.mT

    assert torch.allclose(scores(0), scores(1000), atol=1e-10)
    assert not torch.allclose(scores(0), q @ k.mT, atol=1e-2)


def test_the_second_run_has_no_distance_of_k_and_t_or_more(tokens):
    """Places that the rotary embedding is asked for, in the second run and after a cache that was cut down."""
    model, seen = tiny("Llama"), []

    def look(module, args, named):
        seen.append(named["position_ids"] if "position_ids" in named else args[1])

    handle = model.model.rotary_emb.register_forward_pre_hook(look, with_kwargs=True)
    k, t = 12, 5
    places = ts.select_tokens(ts.filter_scores(model, tokens, [1])[0], k)
    largest = {}
    for name, call in (
        ("second run", lambda: ts.all_kv(model, ts.read_again(model, tokens, places), t)),
        ("One-Run", lambda: ts.one_run(model, ts.read(model, tokens), t, places)),
    ):
        seen.clear()
        call()
        largest[name] = max(int(p.max()) for p in seen)
    handle.remove()
    assert largest["second run"] == k + t - 2 and largest["One-Run"] == 40 + t - 2


def test_gem_filter_reads_the_selected_tokens_alone(model, tokens):
    answer = ts.gem_filter(model, tokens, 5, 12, 1, softmax=True, keep_last=3)
    assert answer.kept.shape == (2, 12) and (answer.kept[:, -3:] == torch.tensor([37, 38, 39])).all()
    assert torch.equal(answer.tokens, again(model, tokens.gather(1, answer.kept), 5))


def test_tokens_read_at_old_places_are_those_of_a_prompt_in_which_the_others_are_hidden(model, tokens):
    """Tokens read at their old places do not see the others, and the answer goes on behind the last of these places."""
    places = torch.cat([torch.arange(3, 30, 3), torch.tensor([38, 39])])[None].expand(2, -1)
    chosen, n_new = tokens.gather(1, places), 4
    said = ts.all_kv(model, ts.read_again(model, tokens, places, old_places=True), n_new).tokens
    at, whole = places, chosen
    with torch.inference_mode():
        for _ in range(n_new):
            size = whole.shape[1]
            later = torch.full((size, size), torch.finfo(torch.double).min, dtype=torch.double).triu(1)
            logits = model(whole, attention_mask=later.expand(2, 1, -1, -1), position_ids=at, use_cache=False).logits
            whole = torch.cat([whole, logits[:, -1:].argmax(-1)], 1)
            at = torch.cat([at, at[:, -1:] + 1], 1)
    assert torch.equal(said, whole[:, -n_new:])
    compact = ts.all_kv(model, ts.read_again(model, tokens, places), n_new).tokens
    assert torch.equal(compact, again(model, chosen, n_new)) and not torch.equal(said, compact)


def masked(model, tokens, kept, n_new):
    """Answers by whole runs without a cache, in which tokens after the prompt see only what was kept of it.

    ``kept`` ``(n_layers, B, h, k)``; the first new token sees everything.
    """
    n, out = tokens.shape[1], tokens

    def attend(module, query, key, value, attention_mask, scaling=None, **_):
        groups = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
        length = query.shape[2]
        allowed = torch.ones(len(query), key.shape[1], length, length, dtype=torch.bool).tril()
        seen = torch.zeros(len(query), kept.shape[2], n, dtype=torch.bool).scatter(2, kept[module.layer_idx], True)
        allowed[:, :, n:, :n] = seen[:, :, None]
        scores = (query @ key.mT * scaling).masked_fill(~allowed, -torch.inf)
        return (scores.softmax(-1) @ value).transpose(1, 2), None

    transformers.AttentionInterface.register("test_masked", attend)
    usual = model.config._attn_implementation
    model.set_attn_implementation("test_masked")
    with torch.inference_mode():
        for _ in range(n_new):
            out = torch.cat([out, model(out).logits[:, -1:].argmax(-1)], 1)
    model.set_attn_implementation(usual)
    return out[:, n:]


def test_answers_from_a_part_of_the_cache_are_those_under_a_mask_and_leave_the_cache(model, tokens):
    prompt = ts.read(model, tokens, 4)
    places = ts.select_tokens(prompt.rows[1], 10)
    one = ts.one_run(model, prompt, 6, places)
    assert torch.equal(one.tokens, masked(model, tokens, places[None, :, None].expand(3, 2, 4, -1), 6))
    snap = ts.snap_kv(model, prompt, 6, 12, window=4)
    assert snap.kept.shape == (3, 2, 4, 12)
    assert torch.equal(snap.tokens, masked(model, tokens, snap.kept, 6))
    assert not torch.equal(snap.kept[0], snap.kept[1]) and not torch.equal(snap.kept[2, :, 0], snap.kept[2, :, 1])
    assert prompt.cache.get_seq_length() == 40
    assert torch.equal(ts.all_kv(model, prompt, 6).tokens, again(model, tokens, 6))


def test_snap_kv_keeps_its_window_and_what_the_window_attends_to(model, tokens):
    kept = ts.snap_kv(model, ts.read(model, tokens, 4), 1, 12, window=4).kept
    assert (kept[..., -4:] == torch.arange(36, 40)).all()
    q, k, scaling = queries_and_keys(model, tokens)[2]
    groups = q.shape[1] // k.shape[1]
    maps = torch.zeros(2, 4, 36)
    for b in range(2):
        for head in range(4):
            for i in range(36, 40):
                scores = (k[b, head // groups, : i + 1] @ q[b, head, i]) * scaling
                maps[b, head] += scores.softmax(0)[:36]
    means = torch.nn.functional.avg_pool1d(maps, 5, 1, 2)
    assert torch.allclose(means.gather(2, kept[2, ..., :-4]).sum(2), means.topk(8).values.sum(2), atol=1e-5)


def heavy_hitters(n, k, recent):
    """H2O's attention over prompt and answer at once, place by place."""

    def attend(module, query, key, value, attention_mask, scaling=None, **_):
        groups, length = query.shape[1] // key.shape[1], query.shape[2]
        out = query.new_zeros(len(query), length, *query.shape[1::2])
        for b in range(len(query)):
            for h in range(query.shape[1]):
                sums, kept, head = query.new_zeros(length), [], h // groups
                for row in range(length):
                    seen = torch.tensor([*range(row + 1)] if row < n else [*kept, row])
                    weight = (key[b, head, seen] @ query[b, h, row] * scaling).softmax(0)
                    out[b, row, h] = weight @ value[b, head, seen]
                    sums[seen] += weight
                    if row >= n - 1:
                        early = seen[:-recent]
                        kept = sorted(early[sums[early].topk(k - recent).indices].tolist()) + seen[-recent:].tolist()
        return out, None

    return attend


def test_h2o_keeps_heavy_hitters_and_goes_on_choosing(model, tokens):
    k, recent, n_new = 12, 3, 6
    prompt = ts.read(model, tokens, sums=True)
    answer = ts.h2o(model, prompt, n_new, k, recent)
    assert answer.kept.shape == (3, 2, 4, k) and (answer.kept[..., -recent:] == torch.arange(37, 40)).all()
    transformers.AttentionInterface.register("test_heavy", heavy_hitters(40, k, recent))
    usual = model.config._attn_implementation
    model.set_attn_implementation("test_heavy")
    with torch.inference_mode():
        said = model(torch.cat([tokens, answer.tokens], 1)).logits[:, 39:-1].argmax(-1)
    model.set_attn_implementation(usual)
    assert torch.equal(answer.tokens, said)
    small = ts.h2o(model, prompt, 2, 5, 5)
    assert torch.equal(small.kept, torch.arange(35, 40).expand(3, 2, 4, 5))


def test_sums_do_not_depend_on_the_chunks():
    model, tokens = (
        tiny("Llama"),
        torch.randint(3, 50, (1, 300), generator=torch.Generator().manual_seed(2)),
    )  # more than a chunk of 256
    with torch.inference_mode():
        q, k, scaling = queries_and_keys(model, tokens)[0]
        whole = ts._attention_sums(q, k, scaling, 0)
    assert torch.allclose(ts.read(model, tokens, sums=True).sums[0], whole, atol=1e-4)


def test_answers_stop_at_an_end_token(model, tokens):
    whole = again(model, tokens, 6)
    prompt = ts.read(model, tokens)
    third = ts.all_kv(model, prompt, 6, ends=whole[:, 2].tolist()).tokens
    assert third.shape[1] <= 3 and torch.equal(third, whole[:, : third.shape[1]])


UNSUPPORTED = {
    "GptOss": {"num_local_experts": 2, "num_experts_per_tok": 1},  # attention sinks
    "Gemma2": {},  # soft-capped attention
    "Bloom": {"n_layer": 3, "n_head": 4},  # ALiBi
    "Mamba": {},  # no attention
    "Falcon": {"head_dim": None},  # no attention interface
    "GPTJ": {"n_layer": 3, "n_head": 4, "rotary_dim": 4},  # the same
}


@pytest.mark.parametrize("kind", UNSUPPORTED)
def test_other_attention_is_refused_in_one_line(kind, tokens):
    model = tiny(kind, **UNSUPPORTED[kind])
    for call in (lambda: ts.read(model, tokens, 4), lambda: ts.gem_filter(model, tokens, 3, 10, 1)):
        with pytest.raises(
            ValueError, match="expected plain softmax attention by the interface of transformers, got "
        ) as error:
            call()
        assert "\n" not in str(error.value) and kind in str(error.value)


RECIPE = {"Falcon": "an attention interface and layer 1", "GPTJ": "an attention interface and layer 1"}
RECIPE |= dict.fromkeys(["Gemma2", "GptOss"], "full attention without soft caps or sinks")


@pytest.mark.parametrize("kind", RECIPE)
def test_the_recipe_refuses_attention_that_it_cannot_watch_and_leaves_the_model_as_it_was(kind, tokens):
    model = tiny(kind, **UNSUPPORTED[kind])
    usual, before = model.config._attn_implementation, model(tokens).logits
    with pytest.raises(ValueError, match=f"expected .*{RECIPE[kind]}, got {kind}ForCausalLM"):
        generate_from_gems(model, tokens[:1], 12, 1, max_new_tokens=3)
    assert model.config._attn_implementation == usual and torch.allclose(model(tokens).logits, before, atol=1e-2)


@pytest.mark.parametrize("usual", ["eager", "sdpa"])
def test_the_recipe_does_what_the_package_does_without_gradients_and_leaves_the_model_as_it_was(model, tokens, usual):
    before = model.config._attn_implementation
    model.set_attn_implementation(usual)
    for layer in range(3):
        text, kept = generate_from_gems(model, tokens[:1], 12, layer, max_new_tokens=5)
        answer = ts.gem_filter(model, tokens[:1], 5, 12, layer, ends=[2])
        assert torch.equal(kept, answer.kept[0]) and torch.equal(text[:, 12:], answer.tokens)
        assert model.config._attn_implementation == usual
    recorded = []
    handle = model.lm_head.register_forward_hook(lambda m, args, out: recorded.append(out.requires_grad))
    embedding = model.get_input_embeddings().register_forward_hook(lambda m, args, out: recorded.append(out.requires_grad))
    generate_from_gems(model, tokens[:1], 12, 1, max_new_tokens=2)
    with pytest.raises(ValueError, match="layer 3, got"):
        generate_from_gems(model, tokens[:1], 12, 3)
    handle.remove()
    embedding.remove()
    assert len(recorded) > 4 and not any(recorded) and model.config._attn_implementation == usual
    model.set_attn_implementation(before)


def test_the_recipe_refuses_batches_and_what_else_it_cannot_do(tokens):
    model, short = tiny("Llama"), tiny("Mistral", sliding_window=39)
    for one, prompt, k in (
        (model, tokens, 12),
        (model, tokens[0], 12),
        (model, tokens[:1, :0], 12),
        (model, tokens[:1].tolist(), 12),
        (model, tokens[:1], 0),
        (tiny("Llama").train(), tokens[:1], 12),
    ):
        with pytest.raises(ValueError, match="expected eval mode, k >= 1, one prompt"):
            generate_from_gems(one, prompt, k, 1, max_new_tokens=3)
    with pytest.raises(ValueError, match="expected full attention"):
        generate_from_gems(short, tokens[:1], 12, 1, max_new_tokens=3)
    assert torch.equal(
        generate_from_gems(short, tokens[:1, :39], 12, 1, max_new_tokens=3)[1],
        ts.gem_filter(short, tokens[:1, :39], 1, 12, 1).kept[0],
    )


def test_a_model_that_no_rule_foresees_is_refused(tokens, monkeypatch):
    model = tiny("Llama")
    from transformers.models.llama import modeling_llama

    usual = modeling_llama.eager_attention_forward
    scale = {"scaled": lambda m, q, *rest, **options: usual(m, 2 * q, *rest, **options)}
    monkeypatch.setattr(modeling_llama, "eager_attention_forward", scale["scaled"])
    model.set_attn_implementation("eager")
    with pytest.raises(ValueError, match="scaled inner products change its logits by"):
        ts.read(model, tokens)


def test_sliding_windows_are_respected(tokens):
    model = tiny("Mistral", sliding_window=45)
    prompt = ts.read(model, tokens, 4, sums=True)
    assert torch.equal(ts.all_kv(model, prompt, 5).tokens, again(model, tokens, 5))
    refused = "expected at most 45 tokens, which is the sliding window of the model, got 46"
    for call in (ts.all_kv, lambda *a: ts.snap_kv(*a, 12, 4), lambda *a: ts.h2o(*a, 12)):
        with pytest.raises(ValueError, match=refused):
            call(model, prompt, 6)
    with pytest.raises(ValueError, match="expected at most 45"):
        ts.gem_filter(model, tokens.repeat(1, 2), 3, 10, 1)


def test_a_layer_without_a_window_filters_what_is_longer_than_the_windows_of_others(tokens):
    model, long = tiny("Gemma3"), tokens.repeat(1, 2)
    answer = ts.gem_filter(model, long, 3, 12, 1)
    assert torch.equal(answer.kept, ts.select_tokens(ts.row_scores(*queries_and_keys(model, long)[1][:2]), 12))
    assert torch.equal(answer.tokens, again(model, long.gather(1, answer.kept), 3))
    with pytest.raises(ValueError, match="expected at most 48 tokens"):
        ts.gem_filter(model, long, 3, 12, 0)


LEFT, RIGHT = torch.tensor([[0, 0, 0, 7, 8, 9], [4, 5, 6, 7, 8, 9]]), torch.tensor([[7, 8, 9, 0, 0, 0], [4, 5, 6, 7, 8, 9]])
REFUSED = {
    "layer must be an integer, from 0 to 2, got 3": lambda m, t, p: ts.gem_filter(m, t, 3, 10, 3),
    "layer must be an integer, from 0 to 2, got -1": lambda m, t, p: ts.filter_scores(m, t, [-1]),
    "layer must be an integer, from 0 to 2, got 1.5": lambda m, t, p: ts.gem_filter(m, t, 3, 10, 1.5),
    "k must be an integer, 1 or more, got 0": lambda m, t, p: ts.gem_filter(m, t, 3, 0, 1),
    "k must be an integer, 1 or more, got 0.5": lambda m, t, p: ts.snap_kv(m, p, 3, 0.5, 4),
    "k must be an integer, 1 or more, got -1": lambda m, t, p: ts.h2o(m, p, 3, -1),
    "n_new must be an integer, 1 or more, got 0": lambda m, t, p: ts.all_kv(m, p, 0),
    "pool must be an odd integer, 1 or more, got -1": lambda m, t, p: ts.gem_filter(m, t, 3, 10, 1, pool=-1),
    "pool must be an odd integer, 1 or more, got 4": lambda m, t, p: ts.gem_filter(m, t, 3, 10, 1, pool=4),
    "keep_last must be an integer, from 0 to 10, got -2": lambda m, t, p: ts.gem_filter(m, t, 3, 10, 1, keep_last=-2),
    "keep_last must be an integer, from 0 to 10, got 11": lambda m, t, p: ts.gem_filter(m, t, 3, 10, 1, keep_last=11),
    "row must be 'last', 'middle' or 'largest', got 'first'": lambda m, t, p: ts.gem_filter(m, t, 3, 10, 1, row="first"),
    "window must be an integer, 0 or more, got -4": lambda m, t, p: ts.read(m, t, -4),
    "recent must be an integer, 0 or more, got -2": lambda m, t, p: ts.h2o(m, p, 3, 10, -2),
    "was read with window=4, got one read with window=8": lambda m, t, p: ts.snap_kv(m, ts.read(m, t, 8), 3, 10, window=4),
    "was read with window=32, got one read with window=0": lambda m, t, p: ts.snap_kv(m, ts.read(m, t), 3, 10),
    "read with sums=True": lambda m, t, p: ts.h2o(m, ts.read(m, t), 3, 10),
    r"B and n 1 or more, got torch.int64 \(2, 0\)": lambda m, t, p: ts.gem_filter(m, t[:, :0], 3, 10, 1),
    r"token ids \(B, n\), .* got torch.int64 \(40,\)": lambda m, t, p: ts.read(m, t[0]),
    r"token ids \(B, n\), .* got torch.float64 \(2, 40\)": lambda m, t, p: ts.read(m, t.double()),
    r"token ids \(B, n\), .* got list": lambda m, t, p: ts.gem_filter(m, ["a text", "another"], 3, 10, 1),
    r"without padding, got rows that begin with \[3, 0\] pad tokens": lambda m, t, p: ts.gem_filter(m, LEFT, 3, 4, 1),
    r"without padding, got rows that end with \[3, 0\] pad tokens": lambda m, t, p: ts.filter_scores(m, RIGHT, [1]),
    r"without padding, got rows that begin with \[3\] pad tokens": lambda m, t, p: ts.read(m, LEFT[:1]),
    "in evaluation mode, got one in training mode": lambda m, t, p: ts.gem_filter(tiny("Llama").train(), t, 3, 10, 1),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_done_is_refused_in_one_line(message, tokens):
    model = tiny("Llama")
    with pytest.raises(ValueError, match=message) as error:
        REFUSED[message](model, tokens, ts.read(model, tokens, 4, sums=True))
    assert "\n" not in str(error.value)


def test_a_prompt_may_begin_or_end_with_a_pad_token_and_a_selection_with_any(tokens):
    """Some tokenizers use one token for padding, for the beginning and for the end; selections may begin with any."""
    for model, pad in ((tiny("Llama"), 0), (tiny("Llama", pad_token_id=None), 2)):
        marked = tokens.clone()
        marked[:, [0, 5, 6, -1]] = pad
        assert ts.gem_filter(model, marked, 3, 12, 1).tokens.shape == (2, 3)
        chosen = torch.tensor([[5, 6, 8, 9], [7, 8, 9, 10]])
        assert torch.equal(ts.read_again(model, marked, chosen).tokens, marked.gather(1, chosen))
        marked[:, 1] = pad
        with pytest.raises(ValueError, match="without padding"):
            ts.gem_filter(model, marked, 3, 12, 1)
    assert ts.gem_filter(tiny("Llama", pad_token_id=None, eos_token_id=None), torch.zeros_like(tokens), 3, 12, 1)
