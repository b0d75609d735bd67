"""The claims of chapter 07 on the kept run, and what it stores, on small runs and on made ones that are right or broken."""

from dataclasses import replace

import judged
import numpy as np
import pytest
import torch

from mvnb import kept_runs
from mvnb import training as core
from mvnb.models import transformer_logits
from mvnb.papers.landscape_aware_growing import data, measure, model, training
from mvnb.papers.landscape_aware_growing.data import Text, _encode
from mvnb.runner import catalogue

SLUG = "landscape_aware_growing"
DECLARED = kept_runs.declared(SLUG)["operators"]
LOOKS = DECLARED.parameters["looks"]
SPACE = model.search_space(2, range(3), (1, 2))
COPIES = np.array([not one.random for one in SPACE])
ARMS = ("constant rate", "falling rate")
EACH = ("operators-best-found", "operators-preserving-takes-random-top")


def made(runs=8, noise=0.0005, seed=0, turned=True, late=0):
    """A record in which copies begin above random layers and, if ``turned``, end below them; order comes at step ``late``."""
    g, every = np.random.default_rng(seed), []
    names = [str(one) for one in SPACE]
    for _ in range(runs):
        quality = np.where(COPIES, -0.01 if turned else 0.01, 0) + 0.001 * np.arange(len(SPACE))
        begin = np.where(COPIES, 0.2 - 0.01 * np.arange(len(SPACE)), 0) - 0.001 * np.arange(len(SPACE))
        losses = [1.5 + (begin if look <= late else quality) + noise * g.normal(size=len(SPACE)) for look in LOOKS]
        one = {"losses": np.array(losses).tolist(), "again": (losses[-1] + noise * g.normal(size=len(SPACE))).tolist()}
        every.append({"values": {"operators": names, "small": 1.5} | dict.fromkeys(ARMS, one)})
    return {"parameters": DECLARED.parameters, "runs": every}


def verdicts(record):
    found = {}
    for id, value in measure.operators(record).items():
        rows = ((), value) if isinstance(value, dict) else ((value,), {})
        found[id] = judged.verdict(SLUG, id, "each" if id in EACH else "mean", *rows[0], **rows[1])
    return found


def test_the_claims_on_the_run_are_those_that_are_measured():
    assert set(measure.operators(made())) == set(DECLARED.rules())


def test_all_claims_hold_in_the_papers_world():
    assert set(verdicts(made()).values()) == {"holds"}


@pytest.mark.parametrize(
    ("broken", "failing"),
    [
        ({"turned": False}, {"operators-initial-correlation", "operators-copies-end-lower", "operators-falling-initial"}),
        (
            {"late": 300},  # the order of the start persists
            {"operators-early-ranks-better", "operators-early-correlation", "operators-regret", "operators-regret-falls"}
            | {"operators-last-block", "operators-best-found", "operators-falling-rate", "operators-falling-regret"},
        ),
        ({"late": 1000}, {"operators-later-correlation"}),
    ],
)
def test_claims_fail_in_another_world(broken, failing):
    found = verdicts(made(**broken))
    assert {id for id in failing if found[id] == "holds"} == set()


def test_operators_in_another_order_are_noticed():
    record = made()
    for run in record["runs"]:
        run["values"]["operators"] = run["values"]["operators"][::-1]
    found = verdicts(record)
    assert found["operators-copies-end-lower"] == found["operators-preserving-takes-random-top"] == "fails"


def test_arms_exchanged_are_noticed():
    record, faithful = made(), made(turned=False, late=-1)
    for run, other in zip(record["runs"], faithful["runs"]):
        run["values"]["falling rate"] = other["values"]["falling rate"]
    right = verdicts(record)
    for run in record["runs"]:
        run["values"] |= {arm: run["values"][other] for arm, other in zip(ARMS, ARMS[::-1])}
    wrong = verdicts(record)
    pair = "operators-initial-correlation", "operators-falling-initial"
    assert [right[id] for id in pair] == ["holds", "fails"] and [wrong[id] for id in pair] == ["fails", "holds"]


def scattered():
    """A record whose losses are random numbers, others in each arm."""
    record, g = made(), np.random.default_rng(0)
    for run in record["runs"]:
        losses = g.normal(size=(len(ARMS), len(LOOKS), len(SPACE)))
        run["values"] |= {arm: {"losses": one.tolist(), "again": (one[-1] + 1).tolist()} for arm, one in zip(ARMS, losses)}
    return record


def parts(record):
    """The values of :func:`measure.operators` by claim and name."""
    found = measure.operators(record).items()
    return {(id, name): value for id, one in found for name, value in (one if isinstance(one, dict) else {"": one}).items()}


@pytest.mark.parametrize("arm", ARMS)
def test_every_number_of_a_claim_comes_from_its_own_arm(arm):
    record, other = made(), scattered()
    before = parts(record)
    for run, one in zip(record["runs"], other["runs"]):
        run["values"][arm] = one["values"][arm]
    changed = {key for key, value in parts(record).items() if not np.array_equal(value, before[key])}
    assert changed == {key for key in before if key[0].startswith("operators-falling") == (arm == "falling rate")}


def test_the_table_shows_the_arm_and_the_shares_of_the_claims():
    record = scattered()
    found, (constant, falling) = measure.operators(record), (measure.by_share(record, arm) for arm in ARMS)
    for table, name in ((constant, ""), (falling, "falling-")):
        for share, regret in ((0, "preserving"), (0.05, "lag")):
            assert np.array_equal(table[share]["regret"], found[f"operators-{name}regret"][regret])
    assert np.array_equal(constant[0.2]["spearman"], found["operators-later-correlation"])
    again, first = measure.by_share(record, ARMS[0], (0.002,))[0.002], measure.kept_losses(record, ARMS[0])
    assert again["chosen"].tolist() == first[LOOKS.index(4)].argmin(1).tolist()


def test_the_last_block_on_top_is_that_of_stacking():
    record = scattered()
    final = measure.end(measure.kept_losses(record, "constant rate"), LOOKS)
    share = (final - final.min(1, keepdims=True)) / np.ptp(final, 1)[:, None]
    found, last = measure.operators(record), SPACE.index(model.post_stacking(4, 2))
    np.testing.assert_allclose(found["operators-last-block"], found["operators-regret"]["lag"] - share[:, last])


def test_lag_uses_no_look_after_its_step():
    losses = np.arange(len(LOOKS))[:, None, None] * np.ones((1, 2, 3))
    for share in (0, 0.002, 0.02, 0.05, 0.2):
        step = share * LOOKS[-1]
        used = [look for look in LOOKS if 0.8 * step <= look <= step]
        assert used[-1] == step and measure.seen(losses, LOOKS, step)[0, 0] == np.mean([LOOKS.index(one) for one in used])
    assert measure.end(losses, LOOKS)[0, 0] == np.mean([i for i, look in enumerate(LOOKS) if look >= 1800])


def test_the_noise_of_validation_is_that_of_one_set():
    record = made(runs=50, noise=0.0)
    g = np.random.default_rng(0)
    for run in record["runs"]:
        one = run["values"]["constant rate"] = dict(run["values"]["constant rate"])
        exact = np.array(one["losses"][-1])
        shift = 1 + 0.1 * g.normal()  # common to all operators
        one["again"] = exact + shift + 0.003 * g.normal(size=12)
        one["losses"] = [*one["losses"][:-1], exact + 0.003 * g.normal(size=12)]
    assert measure.noise(record, "constant rate").mean() == pytest.approx(0.003, rel=0.1)


# --- Arms ---


@pytest.fixture(scope="module")
def setup():
    words = "".join(np.random.default_rng(0).choice(["ab", "cd ", "(e)"], 2000))
    return training.Setup(Text("x", "abcde ()", _encode(words, "abcde ()"), _encode(words[::-1], "abcde ()")), length=8, dim=8)


def test_the_script_keeps_each_arm_at_its_rate_and_on_the_windows_of_its_seed(setup, tmp_path, monkeypatch):
    """All by hand: 10 steps of warm-up before growing, then 4 at a constant rate or along a cosine."""
    monkeypatch.setattr(data, "load_text", lambda name: setup.text)
    one, looks, lr = DECLARED.shortened(), [0, 1, 4], 0.2
    one = replace(one, parameters=one.parameters | {"lr": lr, "looks": looks})
    found = one.call("run", 7, torch.device("cpu"), tmp_path)
    own = replace(setup, batch_size=2, n_valid=8)
    small = training.pretrain(own, 4, [7], 10, lambda step: lr * (step + 1) / 100)
    assert found["operators"] == [str(one) for one in SPACE]
    assert found["small"] == pytest.approx(training.validation(own, [7])(small.params).item(), abs=1e-5)
    for arm, last in zip(ARMS, (1.0, 0.1)):

        def rate(step, last=last):
            fallen = (1 - np.cos(np.pi * max(step - 10, 0) / 4)) / 2
            return lr * (step + 1) / 100 * (1 - (1 - last) * fallen)

        losses, params = training.race(own, small, SPACE, [7], rate, looks)
        np.testing.assert_allclose(found[arm]["losses"], losses[:, 0], atol=1e-5)
        np.testing.assert_allclose(found[arm]["again"], training.validation(own, [500_007])(params), atol=1e-5)
    monkeypatch.delattr(training, "race")
    again = one.call("run", 7, torch.device("cpu"), tmp_path)  # its networks and losses come from the folder
    assert again.pop("small") == pytest.approx(found.pop("small")) and again == found


def test_the_notebook_judges_the_end_on_other_windows_than_lag(setup):
    """The cell that trains, with a few steps of small networks: what it names, by hand."""
    cells = catalogue.read(catalogue.resolve("07").source).cells
    (cell,) = (cell.source for cell in cells if "arms.pretrain(setup" in cell.source)
    given = {"corpus": setup.text, "objective": "causal", "norm": "pre", "length": 8, "dim": 8, "n_heads": 2, "batch_size": 2}
    given |= {"n_valid": 8, "n_end": 16, "device": "cpu", "seed": 3, "replicas": 2, "n_layers": 2}
    given |= {"init_std": 0.1, "embedding_std": 1.0, "new_std": 0.3, "step_size": 0.5, "decay": 0.1, "pretrain_steps": 6}
    given |= {"growth_steps": 20, "lag_steps": 10, "at_once": 3, "space": model.search_space(1, range(2), (1,))}
    exec(cell, given | {"arms": training, "np": np, "replace": replace}, found := {})
    own = replace(setup, batch_size=2, n_valid=8, init_std=0.1, embedding_std=1.0, new_std=0.3)
    rate, seeds, looks = training.falling(0.5, 0, 26, 0.1), [3000, 3001], found["looks"].tolist()
    small = training.pretrain(own, 2, seeds, 6, rate)
    losses, params = training.race(own, small, given["space"], seeds, rate, looks)
    assert looks == [0, 5, 8, 9, 10, 15, 20]
    np.testing.assert_allclose(found["before"], training.validation(own, seeds)(small.params), rtol=1e-5)
    np.testing.assert_allclose(found["losses"], losses, rtol=1e-5)
    final = training.validation(replace(own, n_valid=16), [503_000, 503_001])(params).view(2, 4)
    np.testing.assert_allclose(found["final"], final, rtol=1e-5)


def test_the_rate_is_constant_or_falls_to_its_last_share():
    constant, falling = (training.falling(2e-3, 4000, 2000, last) for last in (1.0, 0.1))
    assert constant(0) == pytest.approx(2e-5) and constant(99) == constant(4000) == constant(6000) == 2e-3
    assert falling(3999) == falling(4000) == 2e-3 and falling(5000) == pytest.approx(1.1e-3)
    assert falling(6000) == falling(9000) == pytest.approx(2e-4)


def test_all_operators_see_the_batches_of_their_seed(setup):
    one = training.batches(setup, [3, 4], copies=3)(7)[0]
    assert one.shape == (6, 16, 8) and torch.equal(one[0], one[2]) and not torch.equal(one[2], one[3])
    assert torch.equal(training.batches(setup, [4])(7)[0][0], one[3])
    assert not torch.equal(training.batches(setup, [4])(8)[0][0], one[3])


def test_a_race_is_that_of_each_operator_alone_and_goes_on_with_the_moments(setup):
    rate, seeds = training.falling(2e-3, 0, 1, 1.0), [3, 4]
    small = training.pretrain(setup, 3, seeds, 20, rate)
    space = model.search_space(1, range(3), (1,))
    losses, params = training.race(setup, small, space, seeds, rate, [0, 3], at_once=4)
    assert losses.shape == (2, 2, 6) and params["head"].shape[0] == 12
    alone, own = training.race(setup, small, space[4:5], seeds, rate, [0, 3])
    np.testing.assert_allclose(losses[..., 4:5], alone, rtol=1e-5)
    torch.testing.assert_close(params["head"].unflatten(0, (2, 6))[:, 4], own["head"], rtol=1e-4, atol=1e-6)
    before = training.validation(setup, seeds)(small.params).numpy()
    assert np.abs(losses[0, :, [one.random for one in space]] - before).max() < 0.01
    grown = training.grown(setup, small, space, seeds)
    assert grown.step == 20 and grown.state["count"] == 20
    copied, fresh = space[0], space[3]
    assert not copied.random and fresh.random
    moments = grown.state["m.layers.up"].unflatten(0, (2, 6))
    assert torch.equal(moments[:, 0, 1], moments[:, 0, 0]) and moments[:, 0, 1].abs().max() > 0
    assert moments[:, 3, 1].abs().max() == 0


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("objective", data.LANGUAGE_OBJECTIVES)
def test_the_loss_is_that_of_the_objective_and_the_norm(setup, objective, norm):
    one = replace(setup, objective=objective, norm=norm, length=16)
    params = training.pretrain(one, 2, [3], 0, lambda step: 0.0).params
    params = {name: 20 * value for name, value in params.items()}
    inputs, targets, weights, prefix = (part[None] for part in one.drawn(50, core.stream(3, 0)))
    logits = transformer_logits(params, inputs, prefix, n_heads=2, norm=norm)
    each = torch.nn.functional.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="none")
    expected = (each * weights.flatten()).sum() / weights.sum()
    torch.testing.assert_close(one.model.losses(params, inputs, targets, weights, prefix)[0], expected)


def test_random_layers_are_those_of_their_seed_at_every_place(setup):
    small = training.pretrain(setup, 3, [3, 4], 0, lambda step: 0.0)
    grown = training.grown(setup, small, model.search_space(1, range(3), (1,), (True,)), [3, 4])
    up = grown.params["layers.up"].unflatten(0, (2, 3))
    assert torch.equal(up[:, 0, 1], up[:, 2, 3]) and not torch.equal(up[0, 0, 1], up[1, 0, 1])
    assert up[:, 0, 1].std().item() == pytest.approx(0.02, rel=0.15)
    wide = model.random_layers([3], 0.5)("layers.up", torch.empty(1, 1, 8, 32))
    assert wide.std().item() == pytest.approx(0.5, rel=0.15)


def test_random_layers_of_different_kinds_are_drawn_apart():
    kinds = ("layers.down", "layers.out", "layers.qkv", "layers.up")
    one = torch.stack([model.random_layers([3], 1.0)(kind, torch.empty(1, 1, 16, 16)).flatten() for kind in kinds])
    assert (one.corrcoef() - torch.eye(4)).abs().max() < 0.3


def test_validation_windows_are_not_those_of_training(setup):
    first = training.pretrain(setup, 2, [3], 0, lambda step: 0.0).params
    assert training.validation(setup, [3])(first) != training.validation(setup, [4])(first)
    other = core.stream(3, training.VALIDATION)
    torch.testing.assert_close(
        training.validation(setup, [3])(first).float(),
        setup.model.losses(first, *(part[None] for part in setup.drawn(setup.n_valid, other, valid=True))),
    )
