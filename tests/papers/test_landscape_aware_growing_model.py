"""Growth operators and rank tools: the paper's examples, and what must hold for all."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from mvnb import training
from mvnb.models import TransformerObjective, initial_parameters, transformer_logits
from mvnb.papers.landscape_aware_growing import theory
from mvnb.papers.landscape_aware_growing.model import Growth, grow, post_stacking, search_space

L, DIM, LENGTH, TOKENS = 4, 8, 6, 11


def zeros(name, like):
    return torch.zeros_like(like)


def random_layers(seed=0, std=0.02):
    g = torch.Generator().manual_seed(seed)
    return lambda name, like: std * torch.randn(like.shape, generator=g, dtype=like.dtype)


def network(seed=0, n_layers=L, std=0.3, replicas=1):
    gens = training.generators(seed, replicas)
    each = [initial_parameters(TOKENS, LENGTH, DIM, n_layers, g, std=std, dtype=torch.float64) for g in gens]
    return {k: torch.stack([one[k] for one in each]) for k in each[0]}


def tokens(replicas=1, n=3, seed=1):
    return torch.randint(TOKENS, (replicas, n, LENGTH), generator=torch.Generator().manual_seed(seed))


def is_new(plan, n_layers=L):
    """For each layer of a grown network whether it is new."""
    return [layer >= n_layers or layer in plan[:place] for place, layer in enumerate(plan)]


def logits(params, x=None, norm="pre"):
    return transformer_logits(params, tokens(len(params["head"])) if x is None else x, n_heads=2, norm=norm)


# --- 1, 2: plans ---


@pytest.mark.parametrize(
    ("block", "random", "layers"),
    [
        (1, False, [1, 2, 2, 3, 3, 4, 4, 5, 6]),
        (3, False, [1, 2, 3, 4, 2, 3, 4, 5, 6]),
        (1, True, [1, 2, "r", 3, "r", 4, "r", 5, 6]),
        (3, True, [1, 2, 3, 4, "r", "r", "r", 5, 6]),
    ],
)
def test_the_worked_examples(block, random, layers):
    plan = Growth(3, 1, block, random).plan(6)  # the paper's index counts from 1
    assert [j + 1 if j < 6 else "r" for j in plan] == layers


@st.composite
def operators(draw):
    n_layers = draw(st.integers(1, 12))
    k = draw(st.integers(1, n_layers))
    block = draw(st.sampled_from([b for b in range(1, k + 1) if k % b == 0]))
    return n_layers, Growth(k, draw(st.integers(0, n_layers - k)), block, draw(st.booleans()))


@given(operators())
def test_old_layers_stay_in_order_and_every_new_block_follows_its_source(drawn):
    n_layers, one = drawn
    plan, new = one.plan(n_layers), is_new(one.plan(n_layers), n_layers)
    assert len(plan) == n_layers + one.k and sum(new) == one.k
    assert [j for j, is_new in zip(plan, new) if not is_new] == list(range(n_layers))
    sources = [j if j < n_layers else one.index + j - n_layers for j in plan]
    for place in (p for p, is_new in enumerate(new) if is_new):
        assert sources[place] == sources[place - one.block] and (plan[place] >= n_layers) == one.random
        assert any(not new[q] and sources[q] == sources[place] for q in range(place))
    if one.random:
        assert sorted(plan)[-one.k :] == list(range(n_layers, n_layers + one.k))


def test_post_stacking_and_its_mirror():
    assert post_stacking(12, 4) == Growth(4, 8, 4)
    assert post_stacking(12, 4).plan(12) == [*range(12), 8, 9, 10, 11]
    assert Growth(4, 0, 4).plan(8) == [0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize(
    ("one", "message"), [(Growth(4, 0, 3), "divide"), (Growth(2, 3, 1), "between 0 and 2"), (Growth(2, -1, 1), "got -1")]
)
def test_impossible_operators_are_refused(one, message):
    with pytest.raises(ValueError, match=message):
        one.plan(4)


# --- 4: sizes of spaces ---


def test_sizes_of_the_papers_spaces():
    assert len(set(search_space(4, range(0, 9, 2), (1, 2, 4)))) == 30
    assert len(search_space(2, range(3), (1, 2))) == 12
    stages = [[0], range(5), range(9), range(0, 13, 2), range(0, 17, 2)]
    spaces = [search_space(4, indices, (1, 2, 4), (False,)) for indices in stages]
    assert [len(space) for space in spaces] == [3, 15, 27, 21, 27]
    for n_layers, space in zip((4, 8, 12, 16, 20), spaces):
        assert all(len(one.plan(n_layers)) == n_layers + 4 for one in space)


# --- 3, 5: what growing does to the function ---


def test_everything_doubled_is_the_model_applied_twice():
    params = network()
    twice = grow(params, [Growth(L, 0, L).plan(L)], zeros)
    chained = {k: torch.cat([v, v], 1) if k.startswith("layers.") else v for k, v in params.items()}
    torch.testing.assert_close(logits(twice), logits(chained))


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("random", [False, True])
def test_layers_that_write_nothing_change_nothing(norm, random):
    params = network()
    one = Growth(2, 1, 1, random)
    grown = grow(params, [one.plan(L)], random_layers())
    for name in ("layers.out", "layers.down"):
        grown[name][:, is_new(one.plan(L))] = 0
    difference = (logits(grown, norm=norm) - logits(params, norm=norm)).abs().max()
    if norm == "pre":
        assert difference < 1e-5
    else:  # what is normalised already is normalised again, with an epsilon under the root
        assert difference < 1e-4
    loud = grow(params, [one.plan(L)], random_layers())
    assert (logits(loud, norm=norm) - logits(params, norm=norm)).abs().max() > 1e-4


# --- 6, 7: parameters, moments and batches ---


def test_copies_are_equal_and_not_aliased():
    params = network()
    one = Growth(2, 1, 2)
    grown = grow(params, [one.plan(L)], zeros)
    for name, value in grown.items():
        if name.startswith("layers."):
            assert torch.equal(value[:, 1:3], value[:, 3:5])
            before = value[:, 3].clone()
            value[:, 1] += 1
            assert torch.equal(value[:, 3], before) and not torch.equal(params[name][:, 1], value[:, 1])


def objective(params, x):
    ones, prefix = torch.ones(x[:, :, 1:].shape), torch.zeros(x.shape[:2], dtype=torch.long)
    return TransformerObjective(2, causal=True)(params, x[:, :, :-1], x[:, :, 1:], ones.double(), prefix)


def test_copies_part_after_one_step():
    plan = Growth(2, 1, 2).plan(L)
    grown = grow(network(), [plan], zeros)
    run = training.fit(objective, grown, (tokens(),), steps=1, optimizer=training.Adam(1e-3))
    for name, value in run.params.items():
        if name.startswith("layers."):
            assert not torch.equal(value[:, 1], value[:, 3])


def test_moments_go_with_their_layers_and_random_layers_have_none():
    run = training.fit(objective, network(replicas=2), (tokens(2),), steps=3, optimizer=training.Adam(1e-3))
    copy, random = Growth(2, 1, 1), Growth(2, 1, 1, True)
    state = grow(run.state, [copy.plan(L), random.plan(L)], zeros)
    assert state["count"] == 3 and len(state["time"]) == 4
    for moment in ("m", "v"):
        old, both = run.state[f"{moment}.layers.up"], state[f"{moment}.layers.up"].unflatten(0, (2, 2))
        assert torch.equal(both[:, 0], old[:, [0, 1, 1, 2, 2, 3]])
        assert torch.equal(both[:, 1, [0, 1, 3, 5]], old) and (both[:, 1, [2, 4]] == 0).all() and (old != 0).any()
        assert torch.equal(state[f"{moment}.head"][0], state[f"{moment}.head"][1])


def test_a_stack_of_plans_is_each_plan_alone_with_the_same_batches():
    params, plans = network(replicas=2), [one.plan(L) for one in search_space(2, range(3), (1, 2))]
    seen = []

    def batches(step):
        x = torch.stack([tokens(n=2, seed=100 * r + step)[0] for r in range(2)])
        seen.append(x.repeat_interleave(len(plans), 0))
        return (seen[-1],)

    together = grow(params, plans, random_layers())
    run = training.fit(objective, together, batches, steps=3, optimizer=training.Adam(1e-2))
    for step in seen:
        assert all(torch.equal(step[len(plans) * r], row) for r in range(2) for row in step[len(plans) * r :][: len(plans)])
    for place in (0, 7):
        one = {k: v[place : place + 1] for k, v in together.items()}
        rows = [step[place : place + 1] for step in seen]
        alone = training.fit(objective, one, lambda step, rows=rows: (rows[step],), steps=3, optimizer=training.Adam(1e-2))
        for k, v in alone.params.items():
            torch.testing.assert_close(v[0], run.params[k][place])


def test_random_plans_of_a_replica_share_their_layers():
    plans = [Growth(2, i, 1, True).plan(L) for i in (0, 2)]
    first, second = grow(network(), plans, random_layers())["layers.up"]
    assert torch.equal(first[1], second[3]) and torch.equal(first[3], second[5])
    assert first.shape == (L + 2, DIM, 4 * DIM)


# --- 8-11: rank tools ---

tables = st.integers(2, 6).flatmap(
    lambda n: st.lists(st.permutations(range(n)), min_size=2, max_size=5).map(lambda rows: np.array(rows, dtype=float))
)


@given(tables)
def test_rank_tools_keep_their_ranges(losses):
    final = losses[-1]
    relative = theory.relative_regret(losses, final)
    assert (relative >= 0).all() and (relative <= 1).all() and relative[-1] == 0
    assert theory.regret(losses, final)[-1] == 0
    hits = np.array([theory.recall(losses, final, k) for k in range(1, len(final) + 1)])
    assert (np.diff(hits.astype(int), axis=0) >= 0).all() and hits[-1].all() and hits[0, -1]
    heat = theory.self_correlation(losses)
    np.testing.assert_allclose(heat, heat.T)
    np.testing.assert_allclose(np.diag(heat), 1)
    np.testing.assert_allclose(heat, theory.self_correlation(np.exp(losses)), atol=1e-12)
    np.testing.assert_allclose(heat[0, 1], scipy_stats.spearmanr(losses[0], losses[1]).statistic)
    assert (theory.best(losses) == losses.argmin(1)).all()
    drop = losses - final
    assert (theory.regret(losses, final) <= np.ptp(drop, -1) + 1e-12).all()


def test_lag_at_the_end_is_the_oracle_and_lag_at_0_loss_preservation():
    losses = np.array([[1.0, 2.0, 3.0], [2.0, 1.0, 3.0], [3.0, 2.0, 1.0]])
    assert theory.best(losses).tolist() == [0, 1, 2]
    assert theory.regret(losses, losses[-1]).tolist() == [2, 1, 0]
    assert theory.relative_regret(losses, losses[-1]).tolist() == [1, 0.5, 0]
    assert theory.recall(losses, losses[-1], 1).tolist() == [False, False, True]
    assert theory.recall(losses, losses[-1], 2).tolist() == [False, False, True]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: theory.best(np.zeros(3)), "table"),
        (lambda: theory.regret(np.zeros((2, 3)), np.zeros(2)), "one loss an operator"),
        (lambda: theory.relative_regret(np.ones((2, 3)), np.ones(3)), "undefined"),
        (lambda: theory.recall(np.eye(3), np.arange(3), 4), "between 1 and 3"),
        (lambda: theory.self_correlation(np.ones((2, 3))), "different"),
        (lambda: theory.best([[np.nan, 1.0]]), "finite"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
