"""The rules of chapter 07 hold for the live run's measures and fail for broken variants; the networks here are smaller."""

from functools import partial

import judged
import numpy as np
import pytest
import torch

from mvnb import training as core
from mvnb.papers.landscape_aware_growing import measure, recipe, theory, training
from mvnb.papers.landscape_aware_growing.data import load_text
from mvnb.papers.landscape_aware_growing.model import Growth, search_space

LOOKS, LAG = [0, 48, 60, 108, 120], 60
SPACE = search_space(2, range(3), (1, 2))
RANDOM = np.array([one.random for one in SPACE])
SEEDS, RATE = [1000, 1001], training.falling(5e-3, 0, 600, 1.0)


verdicts = partial(judged.verdicts, "landscape_aware_growing")


def setup(**changed):
    return training.Setup(load_text(), length=16, dim=8, n_heads=1, batch_size=8, init_std=0.2, embedding_std=0.2, **changed)


@pytest.fixture(scope="module")
def small():
    return training.pretrain(setup(), 4, SEEDS, 400, RATE)


@pytest.fixture(scope="module")
def before(small):
    return training.validation(setup(), SEEDS)(small.params).numpy()


@pytest.fixture(scope="module")
def raced(small):
    return training.race(setup(), small, SPACE, SEEDS, RATE, LOOKS)[0]


def alike(found):
    """The same for four runs that all measured the mean."""

    def equal(one):
        return np.repeat(np.mean(one), 4)

    return {id: {k: equal(v) for k, v in one.items()} if isinstance(one, dict) else equal(one) for id, one in found.items()}


def claims(losses, before, random=RANDOM):
    return verdicts(alike(measure.race(losses, LOOKS, before, random, LAG, measure.end(losses, LOOKS))))


# --- The first look ---


def test_random_layers_keep_the_loss_and_copies_raise_it_while_new_layers_are_small(small, before, raced):
    found = claims(raced, before)
    assert found["random-keeps-the-loss"] == found["copies-raise-the-loss"] == "holds"
    large = training.race(setup(new_std=0.6), small, SPACE, SEEDS, RATE, [0])[0]
    found = claims(np.concatenate([large, raced[1:]]), before)
    assert found["random-keeps-the-loss"] == found["copies-raise-the-loss"] == "fails"


def test_groups_exchanged_and_the_wrong_reference_are_noticed(raced, before):
    swapped = claims(raced, before, ~RANDOM)
    assert swapped["random-keeps-the-loss"] == swapped["copies-raise-the-loss"] == "fails"
    assert claims(raced, before + 0.1)["random-keeps-the-loss"] == "fails"
    look = measure.first_look(raced[0] - before[:, None], RANDOM)
    wrong = measure.first_look(raced[0] - before[:, None], ~RANDOM)
    for id in ("first-look-masked", "first-look-mixture"):
        both = [{id: {"random": one["random"], "far": one["far"]}} for one in (look, wrong)]
        assert [verdicts(alike(one))[id] for one in both] == ["holds", "fails"]


def test_the_gap_is_forgotten_by_training_and_not_without_it(raced, before):
    untrained = np.repeat(raced[:1], len(LOOKS), 0)
    assert claims(untrained, before)["initial-gap-is-forgotten"] == "fails"
    end = np.where(RANDOM, 0.0, 0.05) * measure.gap(raced[0], RANDOM)[:, None] + before[:, None]
    assert claims(np.stack([*raced[:3], end, end]), before)["initial-gap-is-forgotten"] == "holds"


# --- Rank criteria, in worlds made of the race's first losses ---

ORDER = ("initial-correlation-is-negative", "later-loss-ranks", "later-loss-ranks-better", "lag-has-little-regret")
ORDER += ("lag-beats-preserving", "best-is-recalled")


def world(start, later, final):
    return np.stack([start, later, later, final, final])


def test_rank_claims_hold_where_the_order_turns_before_lag_and_not_after_it(raced, before):
    first = raced[0]
    turned = claims(world(first, -first, -first), before)
    assert {turned[id] for id in ORDER} == {"holds"}
    late = claims(world(first, first, -first), before)
    assert {late[id] for id in ORDER[1:]} == {"fails"}
    faithful = claims(world(first, first, first), before)
    assert faithful["initial-correlation-is-negative"] == faithful["later-loss-ranks-better"] == "fails"


def test_operators_that_change_places_are_noticed(raced, before):
    first, g = raced[0], np.random.default_rng(0)
    mixed = claims(world(first, -first[:, g.permutation(len(SPACE))], -first), before)
    assert mixed["later-loss-ranks"] == "fails"


def test_the_end_is_that_on_other_windows(raced, before):
    losses = world(raced[0], -raced[0], -raced[0])
    found = measure.race(losses, LOOKS, before, RANDOM, LAG, raced[0])
    assert (found["later-loss-ranks"] < 0).all() and (found["initial-correlation-is-negative"] == 1).all()


def test_a_ranking_has_one_row_per_run_and_uses_no_look_after_its_step(raced):
    found = measure.ranking(raced, LOOKS)
    for run, losses in enumerate(raced.swapaxes(0, 1)):
        end = losses[-2:].mean(0)
        known = [losses[0], losses[1], losses[1:3].mean(0), losses[3], losses[3:].mean(0)]
        for look, one in enumerate(known):
            expected = theory.self_correlation(np.stack([one, end]))[0, 1]
            assert found["spearman"][run, look] == pytest.approx(expected)
            assert found["chosen"][run, look] == one.argmin()
            assert found["regret"][run, look] == pytest.approx((end[one.argmin()] - end.min()) / np.ptp(end))


def test_the_regret_of_a_fixed_operator_is_its_own(raced):
    end = raced[-2:].mean(0)
    for operator in (0, 5):
        expected = (end[:, operator] - end.min(1)) / (end.max(1) - end.min(1))
        np.testing.assert_allclose(measure.regret_of(raced, LOOKS, operator), expected)


def test_the_lemma_fails_for_another_choice(raced):
    early, final = raced[0, 0], raced[-1, 0]
    assert theory.regret(early[None], final)[0] <= np.ptp(early - final)
    parallel = final + 1.0
    worst = final[parallel.argmax()] - final.min()
    assert theory.regret(parallel[None], final)[0] <= np.ptp(parallel - final) + 1e-12 < worst


# --- Closed forms and tables ---


@pytest.mark.parametrize(
    "wrong", [None, lambda cosine: cosine / 2, lambda cosine: np.full_like(cosine, 0.5)], ids=["right", "linear", "constant"]
)
def test_the_closed_form_tells_another_kernel(wrong, monkeypatch):
    if wrong:
        monkeypatch.setattr(theory, "arc_cosine", wrong)
    drawn = np.transpose([measure.random_block(g) for g in core.generators(0, 2)])
    found = verdicts(alike({"random-block-closed-form": dict(zip(("covariance", "deviation", "power"), drawn))}))
    assert (found["random-block-closed-form"] == "holds") == (wrong is None)


def test_another_power_of_tau_is_noticed(monkeypatch):
    monkeypatch.setattr(measure, "TAUS", (0.01, 0.02, 0.08))
    drawn = np.transpose([measure.random_block(g) for g in core.generators(0, 2)])
    found = verdicts(alike({"random-block-closed-form": dict(zip(("covariance", "deviation", "power"), drawn))}))
    assert found["random-block-closed-form"] == "fails"


def test_another_space_is_noticed(monkeypatch):
    assert verdicts(measure.counts())["space-sizes"] == "holds"
    monkeypatch.setattr(measure, "search_space", lambda k, places, blocks, kinds=(False, True): search_space(k, places, (1, 4)))
    assert verdicts(measure.counts())["space-sizes"] == "fails"


# --- The recipe ---


class Marked(torch.nn.Linear):
    """A layer with a number."""

    def __init__(self, mark):
        super().__init__(1, 1)
        self.mark = mark


@pytest.mark.parametrize("one", [Growth(3, 1, 1), Growth(3, 2, 3), Growth(3, 0, 3, random=True), Growth(3, 3, 1, random=True)])
def test_the_recipe_grows_as_the_plan_says(one):
    layers = torch.nn.ModuleList(map(Marked, range(6)))
    new = iter(range(6, 9))
    grown = recipe.grow(layers, one.index, one.k, one.block, (lambda: Marked(next(new))) if one.random else None)
    assert [layer.mark for layer in grown] == one.plan(6)
    assert len({id(layer.weight) for layer in [*layers, *grown]}) == 15  # nothing is shared
