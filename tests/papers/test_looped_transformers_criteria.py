"""The rules of chapter 14 hold for what they judge and fail for what they do not.

What is judged are the paper's own arms and measures, with weights, steps, noise or data that are broken on purpose.
"""

import math
from functools import partial
from pathlib import Path

import judged
import nbformat
import numpy as np
import pytest
import torch

from mvnb import kept_runs
from mvnb import training as core
from mvnb.papers.looped_transformers import data, measure, model, theory, training

F64 = {"dtype": torch.float64}


def verdict(id, found):
    """The verdict on what a measure returned: a number, an array with one number per run, or several by name."""
    return judged.verdicts("looped_transformers", {id: found})[id]


def generator(seed):
    return torch.Generator().manual_seed(seed)


def spectra(n, d, count, seed):
    return theory.anatomy(*data.prompts(n, d, count, generator(seed)))


def run_figure(examples=(16, 32, 64, 128), part=1.0, count=400, **options):
    g = generator(1000)
    return {n: training.descend(*data.prompts(n, 4, count, g), 200, part, **options) for n in examples}


@pytest.fixture(scope="module")
def figure():
    return run_figure()


# --- The loop, and Figure 8.1 ---


def test_loop_is_descent_needs_mask_labels_and_values(monkeypatch):
    right = model.gradient_weights

    def found(change):
        monkeypatch.setattr(model, "gradient_weights", lambda n, d: change(*right(n, d)))
        return verdict("loop-is-descent", measure.figure(run_figure((16, 32), count=40), 2)["loop-is-descent"])

    blind = torch.ones(5, **F64)
    blind[-1] = 0  # labels are not seen
    assert found(lambda query, value, mask: (query, value, mask)) == "holds"
    assert found(lambda query, value, mask: (query, value, torch.ones_like(mask))) == "fails"
    assert found(lambda query, value, mask: (query, 1.01 * value, mask)) == "fails"
    assert found(lambda query, value, mask: (query * blind, value, mask)) == "fails"
    assert found(lambda query, value, mask: (query, query, mask)) == "fails"  # values that overwrite alpha


def test_claims_on_the_figure_hold_and_fail_for_shorter_steps_and_other_prompts(figure):
    ids = ("more-examples-are-faster", "theorem-holds-for-theta", "narrowing-is-rounding", "gap-narrows")
    found = measure.figure(figure, 5)
    assert [verdict(id, found[id]) for id in ids] == ["holds"] * 3 + ["fails"]
    short = measure.figure(run_figure(part=0.3), 5)
    assert verdict("theorem-holds-for-theta", short["theorem-holds-for-theta"]) == "fails"
    reverse = measure.figure(dict(reversed(figure.items())), 5)
    assert verdict("more-examples-are-faster", reverse["more-examples-are-faster"]) == "fails"
    assert verdict("narrowing-is-rounding", reverse["narrowing-is-rounding"]) == "fails"
    floored = {n: one._replace(exact=one.exact.clamp(min=-72.0)) for n, one in figure.items()}
    assert verdict("gap-narrows", measure.figure(floored, 5)["gap-narrows"]) == "holds"
    unfloored = {n: one._replace(iterates=one.exact[:100]) for n, one in figure.items()}
    assert verdict("narrowing-is-rounding", measure.figure(unfloored, 5)["narrowing-is-rounding"]) == "fails"


def test_printed_condition_numbers_fail_for_other_data():
    g = generator(1)
    kappas = {n: (lambda v: v[:, -1] / v[:, 0])(theory.anatomy(*data.prompts(n, 4, 4000, g))[0]) for n in measure.PRINTED}
    assert verdict("printed-condition-numbers", measure.printed_condition_numbers(kappas)) == "holds"
    of_x = {n: kappa.sqrt() for n, kappa in kappas.items()}  # of X instead of X^T X
    assert verdict("printed-condition-numbers", measure.printed_condition_numbers(of_x)) == "fails"


# --- The prediction ---


def test_the_theorem_needs_the_whole_step():
    mixed = spectra(32, 4, 400, 2)
    for part, first in ((1.0, "holds"), (0.3, "fails")):
        found = measure.prediction(*mixed, 40, 10, part)
        assert (
            verdict("main-theorem", found["main-theorem"])
            == verdict("twice-the-exponent", found["twice-the-exponent"])
            == first
        )
    found = measure.prediction(*mixed, 40, 10)
    assert verdict("more-loops-are-better", found["more-loops-are-better"]) == "holds"
    assert verdict("bound-is-tight", found["bound-is-tight"]) == "fails"
    overshooting = measure.prediction(*mixed, 40, 10, 2.1)  # |1 - eta L| > 1
    assert verdict("more-loops-are-better", overshooting["more-loops-are-better"]) == "fails"


def test_any_tokens_will_do_with_their_own_step_and_not_with_that_of_others():
    x, theta = data.prompts(32, 4, 100, generator(3))
    kinds, fixed = (2 * x, torch.logspace(-1, 1, 4, **F64) * x, x**3), 1 / theory.edges(32, 4)[1]
    assert verdict("distribution-free", measure.any_tokens(kinds, theta)) == "holds"
    assert verdict("distribution-free", measure.any_tokens(kinds, theta, fixed)) == "fails"
    shares = [measure.diverging(theory.anatomy(size * x, theta)[0], fixed, 10) for size in (1, 2, 0.5)]
    assert verdict("fixed-step-knows-the-length", {"own": shares[0], "twice": shares[1]}) == "holds"
    assert verdict("fixed-step-knows-the-length", {"own": shares[0], "twice": shares[2]}) == "fails"


def test_one_example_is_not_enough_with_the_papers_step_or_with_noise():
    x, theta = data.prompts(3, 64, 200, generator(3))
    own = 1 / (x @ theta[..., None]).square().sum((1, 2))[:, None]
    paper = 1 / torch.linalg.eigvalsh(x.mT @ x)[:, -1:]
    for steps, noise, expected in ((own, 0.0, "fails"), (paper, 0.0, "holds"), (own, 0.1, "holds")):
        assert verdict("as-hard-as-regression", measure.solved_elsewhere(x, theta, steps, noise)) == expected


# --- Loops, examples, steps ---


def test_exponents_tell_schedules_apart():
    kappas = [4.0, 16.0, 64.0, 256.0]
    needed = {kind: [training.loops_needed(kappa, kind) for kappa in kappas] for kind in theory.SCHEDULES}
    ids = ("loops-in-proportion-to-kappa", "chebyshev-takes-the-root")
    assert [verdict(id, measure.exponents(kappas, needed)[id]) for id in ids] == ["holds", "holds"]
    swapped = needed | {"1/L": needed["Chebyshev"], "Chebyshev": needed["1/L"]}
    assert [verdict(id, measure.exponents(kappas, swapped)[id]) for id in ids] == ["fails", "fails"]


def test_examples_in_proportion_fails_for_a_fixed_number_and_for_two_per_dimension():
    def found(count):
        return verdict(
            "examples-in-proportion", measure.in_proportion({d: spectra(count(d), d, 2000, d)[0] for d in (4, 8, 16)})
        )

    assert found(lambda d: 8 * d) == "holds"
    assert found(lambda d: 32) == found(lambda d: 2 * d) == "fails"


def test_near_one_fails_for_too_few_examples():
    def found(n):
        return verdict("condition-number-near-one", measure.near_one({0.1: spectra(n, 32, 10, 6)[0]}))

    assert found(3200) == "holds" and found(320) == "fails"


def test_the_limit_fails_for_steps_of_another_ratio():
    large = spectra(512, 128, 16, 7)[0] / 512

    def found(ratio):
        limits = measure.limits(training.limit_squares(large, ratio, 6), 1 / 4)
        return [verdict(id, one) for id, one in limits.items()]

    assert found(1 / 4) == ["holds", "holds"] and found(1 / 2) == ["fails", "fails"]


def pool(n, d, count, runs):
    drawn = [data.prompts(n, d, count, g) for g in core.generators(11, runs)]
    return [torch.stack(part).float() for part in zip(*drawn)]


def test_training_claims_fail_untrained_and_with_equal_steps():
    prompts, judges = pool(32, 8, 8192, 4), spectra(32, 8, 8000, 12)[0] / 32

    def found(steps, starts):
        setting = {"loops": 4, "steps": steps, "batch": 256, "lr": 0.06}
        trained, _ = training.train(training.by_hand(8, starts), ["log_step"], *prompts, **setting)
        result = measure.trained_steps({4: trained["log_step"].exp()}, judges)
        return [verdict(id, one) for id, one in result.items()]

    starts = training.random_steps(4, 4, 0.4, 11).float()
    assert found(400, starts) == ["holds", "holds"]
    assert found(5, starts - 1)[1] == "fails"
    assert "holds" not in (found(5, starts)[0], found(400, starts[:, :1].expand(-1, 4).clone())[0])


def test_values_learn_nothing_from_round_tokens():
    x, theta = pool(32, 8, 8192, 4)
    scale = torch.logspace(-0.25, 0.25, 8).double() ** math.log10(16.0)
    best = theory.best_steps_for(spectra(32, 8, 4000, 15)[0] / 32, 4)
    others, shown = training.whitening_loops(*data.prompts(32, 8, 2000, generator(14)), scale, best)
    task = data.prompts(32, 8, 2000, generator(14))[1]
    start = training.by_hand(8, training.random_steps(4, 4, 0.4 / scale.max() ** 2, 3).float())

    def found(tokens):
        setting = {"loops": 4, "steps": 400, "batch": 256, "lr": 0.06}
        taught, _ = training.train(start, ["log_step", "value"], tokens, theta, **setting)
        taught = {name: one.double() for name, one in taught.items()}
        return [verdict(id, one) for id, one in measure.values(taught, others, shown, task, scale).items()]

    assert found(x * scale.float()) == ["holds", "holds"] and found(x) == ["fails", "fails"]


# --- Label noise ---


def test_noise_claims_fail_without_noise_and_with_another_count():
    x, theta = data.prompts(32, 16, 3000, generator(12))
    values = theory.anatomy(x, theta)[0]

    def found(deviation, said):
        y = (x @ theta[..., None])[..., 0] + deviation * torch.randn(3000, 32, generator=generator(13), **F64)
        path = theory.descent(x, y, (1 / values[:, -1:]).expand(-1, 80))
        solved = torch.linalg.lstsq(x, y[..., None], driver="gels").solution[..., 0]
        errors = [((at - theta) * theta).sum(-1).square() for at in (path, solved)]
        return [verdict(id, one) for id, one in measure.noise(values, said, *errors, (1, 5, 20, 80)).items()]

    assert found(2.0, 2.0) == ["holds", "holds"]
    assert found(1.0, 2.0)[0] == "fails" and found(0.1, 0.1)[1] == "fails"


# --- The kept run ---

KAPPAS = [4.0, 8.0, 16.0, 32.0, 64.0]


def kept(one, own, seed):
    """Values as the kept run's, of schedules that take the place of both kinds of attention with one step, and with its own."""
    spectrum = torch.logspace(0, -1, 6 + seed, **F64)

    def ends(kind, kappa):
        values = spectrum ** math.log10(kappa)
        counts = {str(n): theory.residuals(values, theory.SCHEDULES[kind](1 / kappa, 1, n))[-1] for n in range(1, 300)}
        return {n: {"test": p.square().mean().item(), "fell": 0.1} for n, p in counts.items()}

    kinds = {"one step": one, "a step per loop": own}
    return {
        f"{attention}, {steps}": {f"{kappa:g}": ends(both[i], kappa) for kappa in KAPPAS}
        for steps, both in kinds.items() for i, attention in enumerate(("linear", "softmax"))
    }  # fmt: skip


def test_softmax_keeps_the_law_fails_if_it_has_the_steps_of_the_other_law():
    ids = ("softmax-keeps-the-law", "trained-linear-keeps-the-law", "softmax-takes-more-loops")

    def found(one, own):
        found = measure.softmax(KAPPAS, *measure.kept_loops([kept(one, own, seed) for seed in range(3)], 0.01))
        return [verdict(id, found[id]) for id in ids]

    single, other = ("2/(L+mu)", "1/L"), ("Chebyshev", "Chebyshev")
    assert found(single, other)[:2] == ["holds", "holds"]
    assert found(("2/(L+mu)", "Chebyshev"), other)[0] == found(single, ("Chebyshev", "1/L"))[0] == "fails"
    assert found(other, other)[1] == "fails" and found(single[::-1], other)[2] == "fails"
    with pytest.raises(ValueError, match="between 1 and 299 loops"):
        measure.kept_loops([kept(single, other, 0)], 2.0)


@pytest.mark.parametrize("sharpness", [0.0, 1.0])
def test_an_arm_trains_the_steps_that_it_says(sharpness):
    x, theta = data.conditioned_prompts(16, 4, 16.0, 1200, generator(20))
    run = partial(training.conditioned_arm, 16.0, 4, x, theta, 200, sharpness=sharpness, steps=60, batch=250, lr=0.01)
    one, own = run(own_steps=False)[0], run(own_steps=True)[0]
    assert own["test"] < 0.6 * one["test"]  # Chebyshev's steps, against one step for four loops
    assert one["train"] == pytest.approx(one["test"], rel=0.2)


def test_an_arm_is_trained_and_tested_with_its_own_attention():
    x, theta = data.conditioned_prompts(16, 4, 16.0, 300, generator(21))
    examples = torch.cat([x, x @ theta[..., None]], -1)[None]
    start, errors = training.by_hand(4, torch.zeros(1, 1, **F64)), []
    for sharpness in (0.0, 1.0):
        hand = training.squared_error(start, examples, theta[None], 3, sharpness)[0]
        literal = model.last_row(examples[0], start["query"][0], start["value"][0], torch.ones(3, **F64), sharpness)
        assert torch.allclose(hand, (literal - theta).square().sum(-1))
        setting = {"own_steps": False, "sharpness": sharpness, "steps": 2, "batch": 100, "lr": 1e-12}
        ends, _ = training.conditioned_arm(16.0, 3, x, theta, 200, **setting)
        errors += [(ends["train"], hand[:100].mean().item()), (ends["test"], hand[100:].mean().item())]
    assert all(found == pytest.approx(expected, rel=1e-4) for found, expected in errors)
    assert abs(errors[1][0] / errors[3][0] - 1) > 0.005


def test_chebyshevs_steps_need_an_order():
    """Exercise ex-14-order."""
    g = generator(0)
    values = torch.logspace(0, math.log10(400), 16, **F64)
    left, right = (torch.linalg.qr(torch.randn(n, 16, generator=g, **F64))[0] for n in (40, 16))
    x, theta = left * values.sqrt() @ right, torch.full((16,), 0.25, **F64)
    mirrored = [0]
    while len(mirrored) < 64:
        mirrored = [v for k in mirrored for v in (k, 2 * len(mirrored) - 1 - k)]
    steps = theory.chebyshev_steps(1, 400, 64)
    ends = [theory.descent(x, x @ theta, s)[-1] - theta for s in (steps, steps.flip(0), steps[mirrored])]
    exact = (theory.residuals(values, steps)[-1].square() @ (right @ theta).square()).sqrt()
    assert ends[0].norm() > 1e6 and ends[1].norm() > 1e6
    assert abs(ends[2].norm() - exact) < 1e-12


# --- What measures and runs read ---


def test_near_one_divides_by_each_eps():
    found = measure.near_one({eps: torch.tensor([[1.0, 1 + 4 * eps]], **F64) for eps in (0.2, 0.05)})
    assert found["least"].item() == pytest.approx(4) and found["largest"].item() == pytest.approx(4)


def test_in_proportion_has_the_condition_number():
    found = measure.in_proportion({d: torch.linspace(1, 5, d, **F64).repeat(10, 1) for d in (4, 8)})
    assert found["kappa"].tolist() == pytest.approx([5.0] * 10)


def test_softmax_is_compared_with_linear_attention():
    powers = {
        "linear, one step": 1.0,
        "softmax, one step": 1.05,
        "linear, a step per loop": 0.5,
        "softmax, a step per loop": 0.45,
    }
    counts = {arm: np.array([KAPPAS]) ** power for arm, power in powers.items()}
    found = measure.softmax(KAPPAS, counts, {arm: np.full((1, 5), float("softmax" in arm)) for arm in powers})
    assert {key: one.item() for key, one in found["softmax-keeps-the-law"].items()} == pytest.approx(
        {"one": 0.05, "own": -0.05}
    )
    assert found["softmax-takes-more-loops"]["one"] > 1 > found["softmax-takes-more-loops"]["own"]
    assert found["kept-loops-are-trained"] == {"linear": 0, "softmax": 1}


def test_an_arm_says_by_how_much_its_error_fell_over_the_last_fifth():
    x, theta = data.conditioned_prompts(16, 4, 16.0, 300, generator(22))
    setting = {"own_steps": False, "sharpness": 0.0, "steps": 10, "batch": 100, "lr": 0.01}
    ends, _ = training.conditioned_arm(16.0, 3, x, theta, 200, **setting)
    before, after = training.conditioned_arm(16.0, 3, x, theta, 200, log_at=(8, 10), **setting)[1]["all"][:, 0].tolist()
    assert 0 < ends["fell"] == pytest.approx(100 * (before - after) / before, rel=0.01)


def test_the_kept_run_trains_each_arm_at_each_condition_number(tmp_path, monkeypatch):
    def arm(kappa, loops, x, theta, tests, *, sharpness, own_steps, **_):
        return (round(torch.linalg.cond(x).square().mean().item(), 3), kappa, loops, sharpness, own_steps), {}

    monkeypatch.setattr(training, "conditioned_arm", arm)
    one = kept_runs.declared("looped_transformers")["softmax"].shortened()
    for name, by_kappa in one.call("run", 0, torch.device("cpu"), tmp_path).items():
        setting = one.parameters["arms"][name]["sharpness"], "per loop" in name
        for kappa, ends in by_kappa.items():
            assert all(end == (float(kappa), float(kappa), int(count), *setting) for count, end in ends.items())


def test_cells_pass_what_their_claims_say(monkeypatch):
    seen, book = {}, nbformat.read(Path(__file__).resolve().parents[2] / "notebooks" / "14_looped_transformers.ipynb", 4)
    monkeypatch.setattr(measure, "any_tokens", lambda kinds, theta: seen.update(kinds=kinds))
    prediction = measure.prediction
    monkeypatch.setattr(measure, "prediction", lambda *given: seen.update(loops=given[2]) or prediction(*given))
    given = globals() | {"examples": [16, 32], "dim": 4, "replicas": 20, "trials": 10, "device": "cpu"}
    given["prompts"] = lambda n, d, count, purpose: data.prompts(n, d, count, generator(purpose))
    for cell in book.cells:
        if "measure.any_tokens(" in cell.source or "measure.prediction(" in cell.source:
            exec(cell.source, given)
    spread = [(one.std((0, 1)).max() / one.std((0, 1)).min()).item() for one in seen["kinds"]]
    tails = [((one / one.std((0, 1))) ** 4).mean().item() for one in seen["kinds"]]
    assert seen["loops"] == 40 and spread[1] > 50 and tails[2] > 15


def test_the_two_exponents_and_the_worst_prompt_are_told_apart():
    spectrum = torch.tensor([[1.0, 4.0]], **F64)
    found = measure.prediction(spectrum, torch.tensor([[0.0, 1.0]], **F64), 40, 1, part=0.7)
    assert found["main-theorem"] == 0  # its own direction has the factor 0.3
    along = measure.prediction(spectrum, torch.tensor([[1.0, 0.0]], **F64), 40, 1, part=0.7)
    assert along["main-theorem"] == 0 and along["twice-the-exponent"]["violations"] == 40
    for one in (found, along):
        assert one["bound-is-tight"].item() == pytest.approx(math.exp(-20 / 8) / (1 - 0.7 / 4) ** 20)


def test_limits_belong_to_their_schedules():
    t = torch.arange(1.0, 4, **F64)[:, None]
    found = measure.limits({"best": 2 * theory.least_mean_square(0.25, t), "memory": 3 * 0.25**t}, 0.25)
    assert [one["least"].item() for one in found.values()] == pytest.approx([2, 3])
    assert [one["largest"].item() for one in found.values()] == pytest.approx([2, 3])


def test_iterates_and_the_formula_are_counted_apart():
    found = run_figure(count=40)
    far = {n: one._replace(iterates=torch.zeros_like(one.iterates)) for n, one in found.items()}
    counts = measure.figure(far, 1)["theorem-holds-for-theta"]
    assert counts["exact"] == 0 < counts["iterates"]


def test_whitening_arms_have_their_own_steps():
    x, theta = data.prompts(32, 3, 50, generator(5))
    scale, best = torch.tensor([1.0, 2.0, 4.0], **F64), torch.tensor([0.1, 0.2], **F64)
    loops, _ = training.whitening_loops(x.double(), theta.double(), scale, best)
    own = theory.best_steps_for(theory.anatomy(x.double() * scale, theta.double())[0] / 32, 2)
    torch.testing.assert_close(loops["inverse"]["log_step"][0].exp(), best)
    torch.testing.assert_close(loops["steps"]["log_step"][0].exp(), own)
    assert not torch.allclose(own, best)
