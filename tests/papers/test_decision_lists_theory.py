"""The world of chapter 06 and its closed forms, against autograd, enumeration and sampling."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from mvnb import training
from mvnb.papers.decision_lists import theory
from mvnb.papers.decision_lists.data import DecisionLists

SIZES = [(6, 3, 2), (8, 4, 3), (7, 5, 4)]


def worlds(size, replicas=3, seed=0):
    return [DecisionLists.random(*size, g) for g in training.generators(seed, replicas)]


def every_sequence(some):
    sets = torch.combinations(torch.arange(some[0].n_tokens), some[0].length)
    decides = torch.stack([one.deciding(sets) for one in some])
    labels = torch.stack([one.permutation[one.deciding(sets)] for one in some])
    return sets.expand_as(decides), labels, decides


def values(some, scale):
    return torch.stack([one.value_matrix(scale) for one in some])


def normal(shape, seed=0, scale=1.0):
    return scale * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def matrices(size, replicas=3, scale=1.0):
    return [normal((replicas, size[0], size[0]), seed, scale) for seed in (1, 2)]


# --- The world ---


@given(st.integers(2, 9), st.integers(1, 6), st.integers(1, 5), st.integers(0, 10**6))
@settings(max_examples=40, deadline=None)
def test_the_first_token_of_the_list_that_is_present_decides(n_tokens, length, list_length, seed):
    length, list_length = min(length, n_tokens), min(list_length, n_tokens)
    g = torch.Generator().manual_seed(seed)
    world = DecisionLists.random(n_tokens, length, list_length, g)
    sample = world.sample(5, g)
    for tokens, decides in zip(sample.tokens.tolist(), sample.decides.tolist()):
        assert len(set(tokens)) == length
        for a, b in zip(tokens, decides):
            assert b == next(entry for entry in world.lists[a].tolist() if entry in tokens)


def test_random_lists_hold_different_tokens_and_end_with_their_own():
    world = DecisionLists.random(9, 4, 5, torch.Generator().manual_seed(0))
    assert all(len(set(row)) == 5 for row in world.lists.tolist())
    assert world.lists[:, -1].tolist() == list(range(9))


def test_label_is_the_own_token_when_no_other_entry_is_present_and_ignores_what_comes_later():
    world = DecisionLists.shifted(12, 3, (1, 2), shift=5)
    tokens = torch.tensor([[0, 6, 9], [0, 1, 9], [0, 1, 2]])  # 1 decides for 0 whether or not 2 is there
    assert world.permutation[world.deciding(tokens)][:, 0].tolist() == [5, 6, 6]
    assert world.deciding(tokens)[1].tolist() == [1, 1, 9]


def test_the_papers_lists():
    world = DecisionLists.shifted()
    assert world.lists[195].tolist() == [5, 15, 25, 195]
    assert world.permutation[190] == 10 and world.length == 25
    assert world.value_matrix(3.0)[10, 190] == 3 and world.value_matrix().sum() == 200


def test_sequences_are_uniform_and_may_be_made_to_hold_a_token():
    world = DecisionLists.shifted(6, 3, (1, 2))
    sample = world.sample(20000, torch.Generator().manual_seed(0))
    counts = torch.bincount((1 << sample.tokens).sum(1), minlength=64)
    counts = counts[counts > 0].double()
    assert len(counts) == 20
    assert (counts - 1000).abs().max() < 5 * math.sqrt(950)
    first = torch.bincount(sample.tokens[:, 0], minlength=6).double()
    assert (first / 20000 - 1 / 6).abs().max() < 0.015
    held = world.sample(1000, torch.Generator().manual_seed(0), containing=4)
    assert (held.tokens[:, 0] == 4).all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DecisionLists.shifted(11, 12), "length must be"),
        (lambda: DecisionLists.shifted(10, 3, (5, 15)), "offsets must be"),
        (lambda: DecisionLists.random(5, 3, 6, torch.Generator()), "list_length must be"),
        (lambda: DecisionLists(torch.tensor([[1], [0]]), torch.arange(2), 1), "row a ends with token a"),
        (lambda: DecisionLists(torch.tensor([[0], [1]]), torch.zeros(2).long(), 1), "every token once"),
        (lambda: theory.ColumnPopulation(10, 4, 7), "list_length must be"),
    ],
)
def test_what_is_wrong_is_said(make, message):
    with pytest.raises(ValueError, match=message):
        make()


# --- The model ---


@pytest.mark.parametrize("size", SIZES)
def test_gradients_are_autograd_of_the_matrix_form(size):
    some = worlds(size)
    tokens, labels, _ = every_sequence(some)
    w, v = matrices(size)
    probability = torch.rand(tokens.shape[:2], generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    losses, grads = theory.objective({"w": w, "v": v}, tokens, labels, probability)
    for r in range(3):
        a, b = w[r].clone().requires_grad_(), v[r].clone().requires_grad_()
        x = nn.functional.one_hot(tokens[r], size[0]).mT.double()
        logits = b @ x @ (x.mT @ a @ x).softmax(1)
        loss = (nn.functional.cross_entropy(logits, labels[r], reduction="none").mean(1) * probability[r]).sum()
        loss.backward()
        assert torch.allclose(losses[r], loss, atol=1e-12)
        assert (grads["w"][r] - a.grad).abs().max() < 1e-10
        assert (grads["v"][r] - b.grad).abs().max() < 1e-10


def test_gradients_keep_column_sums_and_touch_only_what_is_there():
    some = worlds((8, 4, 3))
    tokens, labels, _ = every_sequence(some)
    w, v = matrices((8, 4, 3))
    _, grads = theory.objective({"w": w, "v": v}, tokens, labels)
    assert grads["w"].sum(1).abs().max() < 1e-12
    assert grads["v"].sum(1).abs().max() < 1e-12
    one = slice(0, 1)  # the sequence 0, 1, 2, 3
    _, grads = theory.objective({"w": w, "v": v}, tokens[:, one], labels[:, one])
    assert grads["w"][:, 4:].abs().max() == 0 and grads["w"][:, :, 4:].abs().max() == 0
    assert grads["v"][:, :, 4:].abs().max() == 0
    assert grads["w"][:, :4, :4].abs().min() > 0


def test_order_of_positions_and_names_of_tokens_do_not_matter():
    some = worlds((8, 4, 3))
    tokens, labels, _ = every_sequence(some)
    w, v = matrices((8, 4, 3))
    before = theory.forward_backward(w, v, tokens, labels)
    swap = torch.tensor([2, 0, 3, 1])
    after = theory.forward_backward(w, v, tokens[..., swap], labels[..., swap])
    assert torch.allclose(after.logits, before.logits[:, :, swap], atol=1e-12)
    name = torch.randperm(8, generator=torch.Generator().manual_seed(0))
    back = name.argsort()
    renamed = theory.forward_backward(w[:, back][:, :, back], v[:, back][:, :, back], name[tokens], name[labels])
    assert torch.allclose(renamed.loss, before.loss, atol=1e-12)


def test_uniform_attention_gives_all_positions_one_output():
    some = worlds((8, 4, 3))
    tokens, labels, _ = every_sequence(some)
    w, v = matrices((8, 4, 3))
    logits = theory.forward_backward(0 * w, v, tokens, labels).logits
    assert (logits - logits[:, :, :1]).abs().max() < 1e-13
    best = theory.uniform_attention_accuracy(labels)
    assert ((logits.argmax(-1) == labels).double().mean((1, 2)) <= best).all()
    by_hand = np.mean([max(row.tolist().count(y) for y in row.tolist()) for row in labels[0]]) / 4
    assert math.isclose(best[0].item(), by_hand)


@pytest.mark.parametrize("scale", [0.0, 1.0, 10.0, 300.0])
def test_initial_loss_in_closed_form(scale):
    some = worlds((8, 4, 3))
    tokens, labels, _ = every_sequence(some)
    zero = torch.zeros(3, 8, 8, dtype=torch.float64)
    losses, _ = theory.objective({"w": zero, "v": values(some, scale)}, tokens, labels)
    assert torch.allclose(losses, torch.tensor(theory.initial_loss(8, 4, scale)), atol=1e-12)
    assert math.isclose(theory.initial_loss(8, 4, 0.0), math.log(8))


def test_attention_decides_the_answer_when_values_are_right():
    some = worlds((8, 4, 3))
    tokens, labels, decides = every_sequence(some)
    w, _ = matrices((8, 4, 3))
    one = theory.forward_backward(w, values(some, 7.0), tokens, labels)
    most = tokens[..., None].expand_as(one.attention).gather(2, one.attention.argmax(2, keepdim=True))[..., 0, :]
    wrong = theory.misclassified(one.logits, labels)
    assert torch.equal(wrong, most != decides)
    sure = (one.attention * (tokens[..., :, None] == decides[..., None, :])).sum(2) > 0.5
    assert not (sure & wrong).any() and sure.any()
    assert theory.misclassified(torch.zeros(2, 3), torch.tensor([0, 1])).all()  # ties are mistakes


def test_margin_is_perfect_classification():
    some = worlds((8, 4, 3), 40)
    lists = torch.stack([one.lists for one in some])
    tokens, labels, _ = every_sequence(some)
    target = torch.where(theory.list_ranks(lists) < 3, 3.0 - theory.list_ranks(lists), 0).mT.double()
    w = target + 0.45 * normal(target.shape)
    wrong = theory.misclassified(theory.forward_backward(w, values(some, 5.0), tokens, labels).logits, labels)
    per_token = torch.zeros(40, 8).scatter_add(1, tokens.flatten(1), wrong.flatten(1).float())
    ordered = theory.list_margin(w.mT, lists) > 0
    assert torch.equal(per_token == 0, ordered) and ordered.any() and not ordered.all()


# --- The direction, and curvature ---


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("scale", [0.5, 30.0])
def test_no_sequence_disagrees_and_together_they_pull(size, scale):
    some = worlds(size, 10)
    tokens, labels, decides = every_sequence(some)
    lists = torch.stack([one.lists for one in some])
    w = normal((10, size[0], size[0]), 3, 1.5)
    seen = theory.directional_derivatives(w, values(some, scale), tokens, labels, decides, lists)
    bound = -scale / (2 * size[1]) * seen.p_star * (1 - seen.p_star)
    assert (seen.along_v <= bound + 1e-12)[seen.bad].all() and seen.bad.any()
    assert (seen.along_v <= 1e-12).all()
    total = torch.zeros(10, size[0], dtype=torch.float64)
    total = total.scatter_add(1, tokens.flatten(1), seen.along_v.flatten(1))
    erring = torch.zeros(10, size[0]).scatter_add(1, tokens.flatten(1), seen.bad.flatten(1).float()) > 0
    assert (total[erring] < 0).all() and (total[~erring] == 0).all()


def test_directional_derivative_is_a_derivative():
    some = worlds((8, 4, 3), 1)
    tokens, labels, decides = every_sequence(some)
    lists, v = some[0].lists[None], values(some, 5.0)
    w = normal((1, 8, 8), 5, 1.5)
    seen = theory.directional_derivatives(w, v, tokens, labels, decides, lists)
    wrong = theory.misclassified(theory.forward_backward(w, v, tokens, labels).logits, labels)[0]
    s, q = torch.nonzero(seen.bad[0])[0].tolist()
    a = tokens[0, s, q].item()
    mistakes = {lists[0, a].tolist().index(d) for d in decides[0][wrong & (tokens[0] == a)].tolist()}
    direction = torch.zeros_like(w)
    direction[0, lists[0, a, : min(mistakes) + 1], a] = 1
    loss = lambda x: theory.forward_backward(x, v, tokens, labels).loss[0].mean(1)  # noqa: E731
    _, slope = torch.func.jvp(loss, (w,), (direction,))
    rows = (tokens[0] == a).any(1)
    assert torch.allclose(slope[rows], seen.along_v[0][tokens[0] == a], atol=1e-12)


def test_the_direction_needs_the_earliest_mistake():
    """List (b, d, a), tokens a, b, d = 0, 1, 2: b decides and a is wrong, and along e_b + e_d the loss rises."""
    w = torch.zeros(1, 6, 6, dtype=torch.float64)
    w[0, :3, 0] = torch.tensor([0.45, 0.05, 0.5]).double().log()
    v = 10 * torch.eye(6, dtype=torch.float64)[None]
    one = theory.forward_backward(w, v, torch.tensor([[[0, 1, 2]]]), torch.tensor([[[1, 1, 2]]]))
    assert theory.misclassified(one.logits, torch.tensor([[[1, 1, 2]]]))[0, 0, 0]
    slope = one.slope[0, 0, :, 0]
    assert slope[1] < 0 and math.isclose(slope[1] + slope[2], 0.2337, abs_tol=1e-4)


def test_hessian_is_autograds_and_below_the_bound():
    some = worlds((6, 3, 2), 2)
    tokens, labels, _ = every_sequence(some)
    v = values(some, 9.0)
    for spread in (0.0, 1.0, 4.0):
        w = normal((2, 6, 6), 1, spread)
        blocks = theory.hessian_blocks(w, v, tokens, labels)
        for r in range(2):

            def loss(x, r=r):
                one = slice(r, r + 1)
                return theory.objective({"w": x[None], "v": v[one]}, tokens[one], labels[one])[0][0]

            full = torch.func.hessian(loss)(w[r]).permute(1, 3, 0, 2)  # (query, query, key, key)
            assert torch.allclose(full[range(6), range(6)], blocks[r], atol=1e-12)
            assert full[~torch.eye(6, dtype=torch.bool)].abs().max() < 1e-12
        share = theory.token_share(6, tokens, torch.full(tokens.shape[:2], 1 / tokens.shape[1]).double())
        assert torch.allclose(share, torch.tensor(1 / 6).double())
        assert (torch.linalg.eigvalsh(blocks).abs().amax((1, 2)) <= theory.smoothness(9.0, share)).all()


def test_the_joint_curvature_is_below_its_bound():
    some = worlds((6, 3, 2), 1)
    tokens, labels, _ = every_sequence(some)
    for scale, epsilon in ((3.0, 0.5), (40.0, 2.0)):
        v = values(some, scale) + epsilon * (2 * torch.rand(1, 6, 6, generator=torch.Generator().manual_seed(1)).double() - 1)
        w = normal((1, 6, 6), 1)

        def loss(x, shape=v.shape):
            parts = {"w": x[:36].view(shape), "v": x[36:].view(shape)}
            return theory.objective(parts, tokens, labels)[0][0]

        full = torch.func.hessian(loss)(torch.cat([w.flatten(), v.flatten()]))
        largest = torch.linalg.eigvalsh(full).abs().max()
        assert largest <= theory.joint_smoothness(scale, epsilon, 6, 3)


# --- Descent ---


def test_descent_with_the_proven_step_never_raises_the_loss_and_is_perfect_in_time():
    some = worlds((8, 4, 3))
    tokens, labels, decides = every_sequence(some)
    uniform = torch.full(tokens.shape[:2], 1 / tokens.shape[1], dtype=torch.float64)
    delta = theory.least_triple(8, tokens, decides, uniform)
    assert torch.allclose(delta, torch.tensor(theory.triple_probability(8, 4, 3), dtype=torch.float64))
    c = theory.needed_scale(8, 4, delta[0].item())
    curvature = theory.smoothness(c, 1 / 8)
    run = training.fit(
        theory.objective,
        {"w": torch.zeros(3, 8, 8, dtype=torch.float64), "v": values(some, c)},
        (tokens, labels),
        steps=50,
        optimizer=training.SGD(1 / curvature, rates={"v": 0.0}),
        log_at=range(51),
    )
    assert run.log["loss"].diff(dim=0).max() <= 1e-12
    assert run.params["w"].sum(1).abs().max() < 1e-12
    assert (theory.list_margin(run.params["w"].mT, torch.stack([one.lists for one in some])) > 0).all()
    assert theory.step_bound(3, curvature, 8) > 50


def test_values_move_at_most_a_step_a_step():
    some = worlds((8, 4, 3))
    tokens, labels, _ = every_sequence(some)
    w, v = matrices((8, 4, 3))
    _, grads = theory.objective({"w": w, "v": 20 * v}, tokens, labels)
    assert grads["v"].abs().max() <= 1


@pytest.mark.parametrize("size", [(6, 3, 2), (8, 4, 3), (9, 4, 4)])
def test_five_numbers_are_the_whole_descent(size):
    n_tokens, _, list_length = size
    some = worlds(size, 2)
    tokens, labels, _ = every_sequence(some)
    lists = torch.stack([one.lists for one in some])
    zero = torch.zeros(2, n_tokens, n_tokens, dtype=torch.float64)
    full = training.fit(
        theory.objective,
        {"w": zero, "v": values(some, 6.0)},
        (tokens, labels),
        steps=9,
        optimizer=training.SGD(4.0, rates={"v": 0.0}),
    )
    column = theory.ColumnPopulation(*size)
    assert math.isclose(column.probability.sum().item(), 1)
    start = {"entries": zero[:, 0, :list_length], "outside": zero[:, 0, :1]}
    few = training.fit(
        column,
        start,
        (torch.full((2,), 6.0, dtype=torch.float64),),
        steps=9,
        optimizer=training.SGD(4.0 / n_tokens, rates={"outside": 1 / (n_tokens - list_length)}),
        log_at=range(10),
    )
    assert torch.allclose(few.log["loss"][[0, -1]], full.log["loss"], atol=1e-12)
    columns = full.params["w"].mT
    assert torch.allclose(columns.gather(2, lists), few.params["entries"][:, None].expand_as(lists), atol=1e-11)
    rest = torch.ones_like(columns, dtype=torch.bool).scatter(2, lists, False)
    assert (columns[rest] - few.params["outside"][0]).abs().max() < 1e-11
    assert torch.allclose(theory.list_margin(full.params["w"].mT, lists)[:, 0], column.margin(few.params), atol=1e-11)
    wrong = theory.misclassified(theory.forward_backward(**full.params, tokens=tokens, labels=labels).logits, labels)
    assert torch.allclose(wrong.double().mean((1, 2)), column.error(few.params), atol=1e-12)


def test_column_gradient_is_autograds_and_so_is_the_first_step():
    column, scale = theory.ColumnPopulation(30, 6, 4), torch.tensor([5.0, 80.0], dtype=torch.float64)
    params = {"entries": normal((2, 4), 1).requires_grad_(), "outside": normal((2, 1), 2).requires_grad_()}
    losses, grads = column(params, scale)
    expected = torch.autograd.grad(losses.sum(), list(params.values()))
    for found, right in zip(grads.values(), expected):
        assert torch.allclose(found, right, atol=1e-12)
    zero = {"entries": torch.zeros(1, 4, dtype=torch.float64), "outside": torch.zeros(1, 1, dtype=torch.float64)}
    _, grads = column(zero, scale[:1])
    first = theory.first_attention_step(30, 6, 4, 5.0) * 30
    assert np.allclose(-grads["entries"][0], first[:4], atol=1e-14)
    assert np.allclose(-grads["outside"][0] / 26, first[4], atol=1e-14)


# --- The theorems' numbers, and the first step on V ---


def test_subset_probabilities_are_counts():
    sets = list(itertools.combinations(range(7), 3))
    count = sum({0, 1} <= set(s) and not {2, 3} & set(s) for s in sets)
    assert math.isclose(theory.subset_probability(7, 3, 2, 2), count / len(sets))
    assert theory.subset_probability(7, 3, 4) == 0 and theory.subset_probability(3, 3, 2, 2) == 0


def test_least_triple_by_brute_force():
    (world,) = worlds((6, 3, 2), 1)
    tokens, _, decides = every_sequence([world])
    probability = torch.rand(1, 20, generator=torch.Generator().manual_seed(0)).double()
    probability[:, :8] = 0
    mass = {}
    for s, d, p in zip(tokens[0].tolist(), decides[0].tolist(), probability[0].tolist()):
        for (a, b), c in itertools.product(zip(s, d), s):
            mass[a, b, c] = mass.get((a, b, c), 0) + p
    least = min(p for p in mass.values() if p > 0)
    assert math.isclose(theory.least_triple(6, tokens, decides, probability).item(), least)


def test_theorem_constants():
    assert math.isclose(theory.needed_scale(8, 4, 0.1), 640 * math.log(8))
    assert math.isclose(theory.step_bound(3, 2.0, 8), 192 / math.log(8))
    assert math.isclose(theory.needed_scale_joint(4, 0.1, 4, 1.0, 0.5), (8 + 1.5) * 1600 + 4)
    assert theory.step_bound_joint(8.0, 0.5, 0.3) == 2 and theory.step_bound_joint(8.0, 0.5, 2.0) == 1


@pytest.mark.parametrize("size", SIZES)
def test_first_step_on_values_by_enumeration(size):
    some = worlds(size)
    tokens, labels, _ = every_sequence(some)
    zero = torch.zeros(3, size[0], size[0], dtype=torch.float64)
    _, grads = theory.objective({"w": zero, "v": zero}, tokens, labels)
    for one, gradient in zip(some, grads["v"]):
        step = theory.first_value_step(one.lists, one.permutation, size[1], 3.0)
        assert np.allclose(-3.0 * gradient, step, atol=1e-12)
        assert np.abs(step.sum(0)).max() < 1e-12
        assert math.isclose(np.trace(theory.co_occurrence(one.lists, size[1])), size[1])


def test_the_papers_first_step_has_seven_numbers():
    world = DecisionLists.shifted()
    q = theory.co_occurrence(world.lists, 25)
    assert np.allclose(np.diag(q), 25 / 200)
    step = theory.first_value_step(world.lists, world.permutation, 25, 200.0**2)
    line = lambda offset: step[world.permutation, (np.arange(200) + offset) % 200]  # noqa: E731
    for offset, value in {0: 7, 10: -0.69998, 30: -0.69998, -10: 0.62963, -30: 0.62963, 1: -0.035176}.items():
        assert np.allclose(line(offset), value, atol=1e-5)
    assert (step.argmax(0) == world.permutation.numpy()).all()
    assert np.abs(step.sum(1)).max() < 1e-9
