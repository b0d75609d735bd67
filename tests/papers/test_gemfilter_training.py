"""The small models of chapter 15: their data, how they are built and trained, and what each method selects and answers."""

import pytest
import torch

from mvnb.papers.gemfilter import data, training
from mvnb.papers.gemfilter import token_selection as ts
from mvnb.papers.gemfilter.model import small_llama
from mvnb.training import generators


def g(seed=0):
    return torch.Generator().manual_seed(seed)


def asked(n, size=4, depths=(0.0, 1.0), seed=0):
    return data.prompts_by_depth(n, depths, size, g(seed))


# --- Data ---


def test_prompts_ask_for_a_needle_that_is_there():
    all_tokens, all_values, all_places = asked(64, 50, (0.0, 0.5, 1.0))
    assert all_tokens.shape == (150, 66)
    for i, depth in enumerate((0.0, 0.5, 1.0)):
        tokens, values, places = (one[50 * i : 50 * i + 50] for one in (all_tokens, all_values, all_places))
        assert (tokens[:, -2] == 41).all()
        found = tokens.gather(1, places)
        assert (found[:, 0] == 40).all() and (found[:, 1] == tokens[:, -1]).all() and torch.equal(found[:, 2:], values)
        assert (places[:, 0] == 4 * round(depth * 15)).all()
        assert ((tokens[:, :64] == 40).sum(1) == 4).all()
        assert ((tokens[:, :64] == tokens[:, -1:]).sum(1) == 1).all()


def test_training_asks_for_every_needle_once():
    tokens = data.training_batch(24, 30, g())
    questions = tokens[:, 24:].view(30, 4, 4)
    assert (questions[..., 0] == 41).all()
    for row, some in zip(tokens[:, :24], questions):
        marks = (row == 40).nonzero()[:, 0]
        there = sorted(row[m + 1 : m + 4].tolist() for m in marks)
        assert there == sorted(q[1:].tolist() for q in some)


# --- Models and their training ---


def test_keys_are_those_of_the_token_before_and_go_on_with_a_cache():
    model = small_llama(g()).double()
    tokens, *_ = asked(32, 3, (0.5,))
    attention, seen = model.model.layers[1].self_attn, {}
    attention.k_proj.register_forward_hook(lambda m, args, out: seen.update(x=args[0], keys=out))  # after the model's own
    assert torch.equal(attention.k_proj.weight, attention.q_proj.weight)
    with torch.inference_mode():
        model(tokens)
        own = seen["x"] @ attention.k_proj.weight.T
        assert torch.allclose(seen["keys"][:, 1:], own[:, :-1], atol=1e-5)
        assert not seen["keys"][:, 0].any()
        said, whole = ts.all_kv(model, ts.read(model, tokens), 5).tokens, tokens
        for _ in range(5):
            whole = torch.cat([whole, model(whole).logits[:, -1:].argmax(-1)], 1)
    assert torch.equal(said, whole[:, -5:])


@torch.no_grad()
def test_the_loss_is_that_of_the_values_behind_their_keys():
    model, tokens = small_llama(g()), data.training_batch(16, 3, g(1))
    logits, parts = model(tokens).logits, []
    for row in range(3):
        for place in range(16, 32):
            if tokens[row, place] >= 24 and tokens[row, place] < 40:  # a value, and before it the key or the first value
                parts.append(-logits[row, place - 1].log_softmax(-1)[tokens[row, place]])
    assert len(parts) == 24
    assert torch.allclose(training.retrieval_loss(model, tokens), torch.stack(parts).mean())


def weights(model):
    return torch.cat([one.detach().flatten() for one in model.parameters()])


def test_every_model_starts_from_its_own_seed_and_reads_its_own_batches():
    starts = training.untrained(7, 3, "cpu")
    for r, model in enumerate(starts):
        assert torch.equal(weights(model), weights(small_llama(generators(7 + r, 1)[0])))
    assert not torch.equal(weights(starts[0]), weights(starts[1]))
    how = {"steps": 2, "batch": 4, "step_size": 1e-2, "length": 32}

    def trained(seed, n, sources, **changes):
        models, run = training.train(training.untrained(seed, n, "cpu"), [g(s) for s in sources], **how | changes)
        assert run.log["loss"].shape == (len(run.steps), n)
        return [weights(one) for one in models]

    pair, alone = trained(7, 2, (1, 2)), trained(8, 1, (2,))
    assert torch.allclose(pair[1], alone[0], atol=1e-5)  # a model of a stack is the one that is trained alone
    for other in (trained(7, 1, (2,)), trained(8, 1, (1,)), trained(8, 1, (2,), step_size=2e-2), trained(8, 1, (2,), batch=8)):
        assert not torch.allclose(other[0], alone[0], atol=1e-4)


def test_training_begins_with_needles_alone_and_goes_on_to_the_length_that_is_asked_for(monkeypatch):
    seen = {}
    monkeypatch.setattr(
        training.training, "fit", lambda objective, params, batches, **how: seen.update(how, batches=batches) or 1 / 0
    )
    with pytest.raises(ZeroDivisionError):
        training.train(training.untrained(0, 2, "cpu"), [g(0), g(1)], steps=100, batch=6, step_size=0.5, length=48)
    sizes = [seen["batches"](step)[0].shape for step in (0, 64, 65, 66, 67, 68)]
    assert [(r, b, n - 16) for r, b, n in sizes] == [(2, 6, 16), (2, 6, 16), (2, 6, 24), (2, 3, 36), (2, 3, 48), (2, 6, 16)]
    first, second = seen["batches"](0)[0]
    assert not torch.equal(first, second) and seen["steps"] == 100
    rates = [seen["optimizer"].lr(step) for step in (0, 24, 60, 85, 99)]
    assert rates == pytest.approx([0.5 / 25, 0.5, 0.5, 0.25, 0.5 / 30])


def test_training_teaches_what_was_asked_for():
    how = {"steps": 80, "batch": 16, "step_size": 4e-3, "length": 32}
    (model,), run = training.train(training.untrained(0, 1, "cpu"), [g(9)], **how)
    tokens, values, _ = asked(16, 20)
    assert run.log["loss"][-1] < 0.3 < 2 < run.log["loss"][0]
    assert (ts.all_kv(model, ts.read(model, tokens), 2).tokens == values).double().mean() > 0.8


# --- Arms ---


# Layer, row, softmax, pool and places kept by force of every selection.
SELECTED = {
    "GemFilter": (1, "last", False, 5, 0),
    "GemFilter, layer 0": (0, "last", False, 5, 0),
    "GemFilter, middle row": (1, "middle", False, 5, 0),
    "GemFilter, largest row": (1, "largest", False, 5, 0),
    "softmax variant": (1, "last", True, 5, 2),
    "softmax variant, layer 0": (0, "last", True, 5, 2),
    "softmax variant, middle row": (1, "middle", True, 5, 2),
    "softmax variant, largest row": (1, "largest", True, 5, 2),
    "softmax variant, no pooling": (1, "last", True, 1, 2),
    "softmax variant, question not kept": (1, "last", True, 5, 0),
    "softmax variant, no softmax": (1, "last", False, 5, 2),
}


@pytest.mark.parametrize("n", [48, 240])
def test_each_selection_is_the_one_that_its_name_says(n):
    """The places kept are those of the settings above, and the answers are those that the model gives when it reads them so."""
    model, seen = small_llama(g(5)), {}
    for layer in model.model.layers:  # places matter more than in the model as it is built
        layer.self_attn.o_proj.weight.data *= 10
    tokens, _, _ = asked(n, size=20)
    with torch.inference_mode(), ts._watch_attention(model, lambda i, *what: seen.update({i: what})):
        model(tokens)
    size, wanted = {48: 16, 240: 30}[n], {}
    assert training.n_kept(tokens) == size
    for name, (layer, row, softmax, pool, forced) in SELECTED.items():
        q, k, scaling = seen[layer]
        scores = ts.row_scores(q, k, row, scaling if softmax else None)
        wanted[name] = ts.select_tokens(scores, size, pool, forced)
    found = training.replies(model, tokens, True)
    assert training.replies(model, tokens).keys() == found.keys() - training.ABLATIONS.keys()
    for name, kept in wanted.items():
        assert torch.equal(found[name].kept, kept), name
        assert sum(torch.equal(kept, other) for other in wanted.values()) == 1, name  # a test that can fail
        assert torch.equal(found[name].tokens, ts.all_kv(model, ts.read_again(model, tokens, kept), 2).tokens), name
    for name in training.SELECTIONS:
        kept = wanted[name]
        old = ts.all_kv(model, ts.read_again(model, tokens, kept, old_places=True), 2)
        one_run = ts.one_run(model, ts.read(model, tokens), 2, kept)
        for way, answer in (("old places", old), ("One-Run", one_run)):
            assert torch.equal(found[f"{name}, {way}"].kept, kept)
            assert torch.equal(found[f"{name}, {way}"].tokens, answer.tokens)
            assert not torch.equal(answer.tokens, found[name].tokens)
        assert not torch.equal(old.tokens, one_run.tokens)


def test_methods_of_the_small_model_do_not_see_one_anothers_keys():
    """The model remembers the key of its last token: each answer is that of a fresh run."""
    model = small_llama(g(4))
    tokens, _, _ = asked(48)
    alone = {"SnapKV": ts.snap_kv(model, ts.read(model, tokens, 4), 2, 16, 4)}
    alone["H2O"] = ts.h2o(model, ts.read(model, tokens, sums=True), 2, 16, 4)
    alone["whole cache"] = ts.all_kv(model, ts.read(model, tokens), 2)
    found = training.replies(model, tokens)
    for name, one in alone.items():
        assert torch.equal(one.tokens, found[name].tokens) and torch.equal(one.kept, found[name].kept)
