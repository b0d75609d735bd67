"""The criteria of chapter 07 hold for what they judge and fail for what they do not; the networks here are smaller."""

import numpy as np
import pytest
import torch

from mvnb import training
from mvnb.models import TransformerObjective, initial_parameters, transformer_logits
from mvnb.papers.landscape_aware_growing import theory
from mvnb.papers.landscape_aware_growing.growth import grow, search_space
from mvnb.papers.landscape_aware_growing.objectives import causal_lm
from mvnb.papers.landscape_aware_growing.text import load_text, structure_targets

LENGTH, DIM, LAYERS, STEPS = 16, 8, 4, 250
OBJECTIVE = TransformerObjective(1, causal=True)
SPACE = search_space(2, range(3), (1, 2))
RANDOM = np.array([one.random for one in SPACE])


@pytest.fixture(scope="module")
def text():
    return load_text()


def batch(text, step, copies=1, n=8, valid=False):
    g = torch.Generator().manual_seed(step)
    return tuple(f.expand(copies, *f.shape) for f in causal_lm(text.windows(n, LENGTH + 1, g, valid)))


def loss(text, params):
    with torch.no_grad():
        return OBJECTIVE.losses(params, *batch(text, 7, len(params["head"]), 100, True)).double().numpy()


@pytest.fixture(scope="module")
def small(text):
    first = initial_parameters(text.n_tokens, LENGTH, DIM, LAYERS, torch.Generator().manual_seed(1000), std=0.2)
    first = {k: v[None] for k, v in first.items()}
    optimizer = training.Adam(5e-3, beta2=0.99)
    return training.fit(OBJECTIVE, first, lambda step: batch(text, step), steps=STEPS, optimizer=optimizer)


def grown(small, std=0.02, operators=SPACE):
    g = torch.Generator().manual_seed(5)
    return grow(
        small.params, [one.plan(LAYERS) for one in operators], lambda _, like: std * torch.randn(like.shape, generator=g)
    )


@pytest.fixture(scope="module")
def race(text, small):
    """Losses (look, operator) at steps 0 and 120."""
    params = grown(small)
    run = training.fit(
        OBJECTIVE,
        params,
        lambda step: batch(text, STEPS + step, len(SPACE)),
        steps=120,
        optimizer=training.Adam(5e-3, beta2=0.99),
    )
    return np.stack([loss(text, params), loss(text, run.params)])


# --- The first look ---


def test_random_layers_keep_the_loss_only_while_they_are_small(text, small):
    before = loss(text, small.params)
    for std, keeps in ((0.02, True), (0.5, False)):
        change = np.abs(loss(text, grown(small, std)) - before)[RANDOM].max()
        assert (change <= 0.02) == keeps


def test_copies_raise_the_loss_of_a_trained_network_and_not_of_an_empty_one(text, small, race):
    change = race[0] - loss(text, small.params)

    def raised(change):
        return change[~RANDOM].min() > change[RANDOM].max() and gap(change) >= 10 * np.abs(change[RANDOM]).max()

    assert raised(change)
    moved = np.abs(change)
    assert moved[~RANDOM].mean() >= 3 * moved[RANDOM].max()  # the criterion of the smaller experiments
    assert not moved[RANDOM].mean() >= 3 * moved[~RANDOM].max()  # and for the groups exchanged
    shaken = change + np.where(RANDOM, 0.2 * gap(change), 0)  # random layers that disturb a fifth as much as copies
    assert not raised(shaken)
    silent = {k: v.clone() for k, v in grown(small).items()}
    for name in ("layers.out", "layers.down"):
        for o, one in enumerate(SPACE):
            silent[name][o, one.new(LAYERS)] = 0
    change = loss(text, silent) - loss(text, small.params)
    assert not raised(change)


def gap(losses):
    return losses[~RANDOM].mean() - losses[RANDOM].mean()


def test_the_gap_is_forgotten_by_training_and_not_without_it(race):
    first, last = gap(race[0]), gap(race[1])
    assert first > 0 and last <= 0.5 * first
    assert not first <= 0.05 * first and not first <= 0.5 * first


# --- Rank criteria, on the losses of the race ---


def spearman(x, y):
    return theory.self_correlation(np.stack([x, y]))[0, 1]


def test_a_start_that_ranks_the_end_is_noticed(race):
    faithful = race[0] - race[0].mean()  # a world in which nothing changes
    assert not spearman(race[0], faithful) <= 0.5 and not spearman(race[0], faithful) <= -0.2
    assert spearman(-race[0], faithful) <= -0.4
    assert not theory.relative_regret(race[:1], faithful)[0] >= 0.4 * np.mean((faithful - faithful.min()) / np.ptp(faithful))


def test_a_later_look_that_does_not_rank_is_noticed(race):
    final = race[1]
    wrong = -final[None]
    assert not spearman(wrong[0], final) >= 0.3
    blind = np.mean((final - final.min()) / np.ptp(final))
    for limit in (0.15, 0.25):
        assert not theory.relative_regret(wrong, final)[0] <= limit
        assert theory.relative_regret(final[None], final)[0] <= limit < blind + 0.25
    assert not theory.recall(wrong, final, 3)[0]
    assert spearman(final, final) >= 0.9 and theory.recall(final[None], final, 3)[0]  # the strong criteria can be met


def test_lag_that_chooses_as_at_step_0_does_not_beat_it(race):
    final = -race[0]  # a world in which the loss at growing is the worst guide
    preserving = theory.relative_regret(race[:1], final)[0]
    assert preserving >= 0.5 and not preserving <= 0.5 * preserving
    assert theory.relative_regret(final[None], final)[0] <= 0.5 * preserving


def test_the_lemma_fails_for_another_choice(race):
    final = race[1]
    bound = np.ptp(race[0] - final)
    assert theory.regret(race[:1], final)[0] <= bound
    parallel = final + 1.0
    worst = final[parallel.argmax()] - final.min()
    assert theory.regret(parallel[None], final)[0] <= np.ptp(parallel - final) + 1e-12 < worst


def test_the_closed_form_tells_another_kernel():
    g = torch.Generator().manual_seed(0)
    z = torch.randn(4, 16, generator=g, dtype=torch.float64)
    z = 4 * z / z.norm(dim=1, keepdim=True)
    w1, w2 = (0.02 * torch.randn(4000, *s, generator=g, dtype=torch.float64) for s in ((16, 64), (64, 16)))
    delta = (z @ w1).relu() @ w2
    second = (torch.einsum("mid,mjd->ij", delta, delta) / 4000 / 16).numpy()
    cosine = (z @ z.T / 16).numpy()
    right = 0.02**4 * 16 * 64 * theory.arc_cosine(cosine)
    assert abs((second / right).mean() - 1) < 0.06
    for wrong in (0.022**4 * 16 * 64 * theory.arc_cosine(cosine), 0.02**4 * 16 * 64 * cosine / 2):
        assert not abs((second / wrong).mean() - 1) < 0.06


# --- Probes and stacking ---


def test_probes_tell_a_network_that_knows_from_one_that_does_not(text):
    """Accuracy by the chapter's rule, for logits that are the answers, and for an untrained network."""
    windows = text.windows(60, LENGTH + 1, torch.Generator().manual_seed(0), valid=True)
    mask, candidates = structure_targets(text, windows)["brackets"]
    answers = windows[:, 1:]
    first = initial_parameters(text.n_tokens, LENGTH, DIM, 1, torch.Generator().manual_seed(0), std=0.2)
    untrained = transformer_logits({k: v[None] for k, v in first.items()}, windows[None, :, :-1], n_heads=1)[0]
    knowing = torch.nn.functional.one_hot(answers, text.n_tokens).float()

    def accuracy(logits):
        return (candidates[logits[mask][:, candidates].argmax(-1)] == answers[mask]).double().mean()

    assert 100 * (accuracy(knowing) - accuracy(untrained)) >= 3
    assert not 100 * (accuracy(untrained) - accuracy(untrained)) >= 3


def test_stacking_that_chooses_the_worst_and_does_not_train_is_noticed(race):
    last = SPACE.index(next(one for one in SPACE if str(one) == "2/2 copy"))
    assert not race[0].max() - race[1][last] <= 0.05
    assert race[1].min() - race[1][last] <= 0.05
