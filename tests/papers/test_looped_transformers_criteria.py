"""The rules of chapter 14 hold for what they judge and fail for what they do not.

What is judged are the chapter's own functions, with weights, steps, noise or data that are broken on purpose.
"""

import math
from functools import partial

import chapter_source
import judged
import numpy as np
import pytest
import torch

from mvnb import stats
from mvnb.papers.looped_transformers import theory

F64 = {"dtype": torch.float64}
verdict = partial(judged.verdict, "looped_transformers")


@pytest.fixture(scope="module")
def page():
    space = chapter_source.functions_of("14_looped_transformers")
    space.update(f64=F64, seed=1000, train_runs=2, train_prompts=4096)
    return space


@pytest.fixture(scope="module")
def world(page):
    """Spectra and shares of the figure's four prompts."""
    g = torch.Generator().manual_seed(1000)
    return {n: page["anatomy"](*page["prompts"](n, 4, 400, g)) for n in (16, 32, 64, 128)}


def kappa(values):
    return values[:, -1] / values[:, 0]


def tens(values):
    return values[: len(values) // 10 * 10].unflatten(0, (-1, 10))


# --- The loop ---


def test_loop_is_descent_needs_mask_values_and_sign(page):
    x, theta = page["prompts"](16, 4, 3, torch.Generator().manual_seed(1))
    y, steps = (x @ theta[..., None])[..., 0], torch.full((20,), 0.01, **F64)
    z = page["as_prompt"](x, y, torch.zeros(3, 4, **F64), 1.0)
    query, value = page["gradient_weights"](4)
    mask, path = page["last_row_mask"](16), theory.descent(x, y, steps)

    def found(*weights, sign=-1):
        off = (sign * page["loop"](z, *weights, steps)[:, :, -1, :4] - path).abs().max()
        return verdict("loop-is-descent", "exact", off)

    assert found(query, value, mask) == "holds"
    blind = query.clone()
    blind[-1, -1] = 0  # labels are not seen
    assert found(query, value, mask, sign=1) == found(query, value, torch.ones_like(mask)) == "fails"
    assert found(query, 1.01 * value, mask) == found(blind, value, mask) == "fails"
    assert found(query, torch.eye(5, **F64), mask) == "fails"  # values that overwrite alpha
    assert theory.linear_attention(z, query, value, mask)[:, :-1].abs().max() == 0


# --- Figure 8.1 ---


def test_printed_condition_numbers_fail_for_other_data(page, world):
    printed = {16: 4.57, 32: 3.13, 64: 2.07, 128: 1.62}

    def found(condition):
        sets = {n: tens(c).mean(1).unflatten(0, (2, 20)) for n, c in condition.items()}
        scores = torch.stack([(printed[n] - s.mean(1)).abs() / s.std(1) for n, s in sets.items()])
        return verdict("printed-condition-numbers", "mean", scores.amax(0).repeat(10))

    assert found({n: kappa(v) for n, (v, _) in world.items()}) == "holds"
    assert found({n: kappa(v.sqrt()) for n, (v, _) in world.items()}) == "fails"  # of X instead of X^T X
    assert found({n: kappa(world[a][0]) for n, a in zip(world, (16, 16, 32, 64))}) == "fails"


def test_more_examples_are_faster_fails_for_equal_counts_and_for_steps_that_shrink_with_them(world):
    t = torch.tensor([50])

    def found(prompts, part=lambda n: 1.0):
        logs = [tens(theory.log_error(v, c, t, step=part(n) / v[:, -1])[:, 0]).mean(1) for n, (v, c) in prompts]
        numbers = [tens(kappa(v)).mean(1) for _, (v, _) in prompts]
        falls = [-torch.stack(one).diff(dim=0).amax(0) for one in (logs, numbers)]
        return verdict("more-examples-are-faster", "mean", error=falls[0], kappa=falls[1])

    assert found(world.items()) == "holds"
    assert found([(n, world[n]) for n in (32, 16)]) == found(world.items(), lambda n: (16 / n) ** 2) == "fails"
    same = [(32, [one[part::2] for one in world[32]]) for part in (0, 1)]
    assert found(same) != "holds"


def violations(page, tokens, part, power, floor=-math.inf):
    """Of the theorem on theta (power 2) or on the prediction, with steps part / L: exact errors, then iterates."""
    x, theta = tokens
    values, share = page["anatomy"](x, theta)
    t = torch.arange(201)
    line = -power / 2 * t / kappa(values)[:, None]
    steps = part / values[:, -1]
    exact = theory.log_error(values, share, t, power, step=steps)
    path = theory.descent(x, (x @ theta[..., None])[..., 0], steps[:, None].expand(-1, 200)) - theta
    square = path.square().sum(-1).log().T
    return int((exact > line)[:, 1:].sum()), int(((square > line) & (line >= floor))[:, 1:].sum())


def test_theorems_are_violated_by_shorter_steps_and_below_the_iterates_floor(page):
    tokens = page["prompts"](32, 4, 100, torch.Generator().manual_seed(2))

    def for_theta(part, floor=-60):
        exact, iterates = violations(page, tokens, part, 2, floor)
        return verdict("theorem-holds-for-theta", "exact", exact=exact, iterates=iterates)

    def for_prediction(part):
        return verdict("main-theorem", "exact", violations(page, tokens, part, 1)[0])

    assert for_theta(1.0) == for_prediction(1.0) == "holds"
    assert for_theta(0.3) == for_theta(1.0, -math.inf) == for_prediction(0.3) == "fails"


def test_twice_the_exponent_needs_the_whole_step(world):
    values, share = world[32]
    t = torch.arange(1, 41)

    def found(part):
        logs = theory.log_error(values, share, t, 1, step=part / values[:, -1])
        over = int((logs > -t / kappa(values)[:, None]).sum())
        return verdict("twice-the-exponent", "exact", violations=over, distance=0.0)

    assert found(1.0) == "holds" and found(0.8) == "fails"


def test_any_tokens_will_do_with_their_own_step_and_not_with_that_of_others(page):
    x, theta = page["prompts"](32, 4, 100, torch.Generator().manual_seed(3))
    kinds = (2 * x, torch.logspace(-1, 1, 4, **F64) * x, x**3)

    def found(part):  # of 1 / L, for each kind of tokens
        over = sum(violations(page, (tokens, theta), part(tokens), 1)[0] for tokens in kinds)
        return verdict("distribution-free", "exact", over)

    fixed = 1 / theory.edges(32, 4)[1]
    assert found(lambda tokens: torch.ones(len(tokens), **F64)) == "holds"
    assert found(lambda tokens: fixed * page["spectra"](tokens)[:, -1]) == "fails"


def gaps(world, floor):
    """Median gaps at t = 200 in sets of prompts, with and without a floor under the errors, ``(n, set)``."""
    t, out = torch.tensor([200]), []
    for values, share in world.values():
        logs = theory.log_error(values, share, t)[:, 0].clamp(min=floor)
        out.append((-200 / kappa(values) - logs).unflatten(0, (4, -1)).median(1).values)
    return torch.stack(out)


def test_the_gap_widens_and_narrows_with_a_floor_only(world):
    exact, rounded = gaps(world, -math.inf), gaps(world, -72)
    ratios = [kappa(v) * -theory.log_error(v, c, torch.tensor([200]))[:, 0] / 200 for v, c in world.values()]
    ratios = torch.stack([one.unflatten(0, (4, -1)).median(1).values for one in ratios])

    def narrows(gap, exponents):
        named = {"gap": (gap[1:] / gap[:-1]).amin(0), "exponents": exponents.diff(dim=0).amin(0)}
        return verdict("gap-narrows", "mean", **named)

    def rounds(gap):
        return verdict("narrowing-is-rounding", "mean", fall=-gap.diff(dim=0).amax(0), last=gap[-1], exact=exact[-1])

    assert narrows(exact, ratios) == "fails"
    assert narrows(rounded, ratios) == narrows(exact, ratios.flip(0)) == "holds"
    assert rounds(rounded) == "holds" and rounds(exact) == "fails"


# --- The prediction ---


def test_bound_is_tight_would_hold_for_a_tight_bound_and_hard_prompts():
    for k, exponent, tight in ((3.0, 2.0, "fails"), (3.0, 1.0, "fails"), (60.0, 1.0, "holds"), (60.0, 2.0, "holds")):
        ratio = math.exp(-20 / (exponent * k)) / (1 - 1 / k) ** 20
        assert verdict("bound-is-tight", "mean", [ratio, ratio]) == tight


def test_one_example_is_not_enough_with_the_papers_step_or_with_noise(page):
    x, theta = page["prompts"](3, 64, 200, torch.Generator().manual_seed(3))
    y = (x @ theta[..., None])[..., 0]

    def found(step, labels):
        end = theory.descent(x, labels, step)[-1]
        solved = (((end * theta).sum(-1) - 1).abs() < 1e-9) & ((end - theta).norm(dim=-1) > 0.5)
        return verdict("as-hard-as-regression", "exact", int(solved.sum()))

    own = 1 / y.square().sum(1, keepdim=True)
    assert found(own, y) == "fails"
    assert found(1 / torch.linalg.eigvalsh(x.mT @ x)[:, -1:], y) == found(own, y + 0.1) == "holds"


def test_the_formula_of_one_loop_fails_for_another_step_and_another_count():
    y = torch.randn(16000, 32, generator=torch.Generator().manual_seed(4), **F64).square().sum(1)

    def found(step, n):
        over = (step * y - 1).square() * (n + 2) / 2
        return verdict("one-fixed-loop-does-not-see-the-dimension", "mean", d2=over, d8=over, d32=over)

    assert found(1 / 34, 32) == "holds"
    assert found(1 / 28, 32) == found(1 / 34, 24) == "fails"


# --- Loops, examples, steps ---


def test_slopes_tell_schedules_apart(page):
    kappas = [4.0, 16.0, 64.0, 256.0, 1024.0]
    slope = {k: stats.power_law_fit(kappas, [page["loops_needed"](c, k) for c in kappas]).slope for k in ("1/L", "chebyshev")}

    def found(kind):
        root = verdict("chebyshev-takes-the-root", "exact", slope[kind])
        return verdict("loops-in-proportion-to-kappa", "exact", largest=slope[kind], middle=slope[kind]), root

    assert found("1/L") == ("holds", "fails") and found("chebyshev") == ("fails", "holds")


def test_examples_in_proportion_fails_for_a_fixed_number_and_for_two_a_dimension(page):
    g = torch.Generator().manual_seed(5)

    def found(count):
        means, kappas = [], []
        for d in (4, 8, 16):
            values, _ = page["anatomy"](*page["prompts"](count(d), d, 2000, g))
            p = theory.residuals(values, (1 / values[:, -1:]).expand(-1, 20))[:, -1]
            means.append(page["tenths"](p.mean(1)))
            kappas.append(page["tenths"](kappa(values)))
        means, kappas = torch.stack(means), torch.stack(kappas)
        return verdict("examples-in-proportion", "mean", error=means.amax(0) / means.amin(0), kappa=kappas.amax(0))

    assert found(lambda d: 8 * d) == "holds"
    assert found(lambda d: 32) == found(lambda d: 2 * d) == "fails"


def test_near_one_fails_for_too_few_examples(page):
    g = torch.Generator().manual_seed(6)

    def found(n):  # at eps = 0.1
        over = (kappa(page["spectra"](page["prompts"](n, 32, 10, g)[0])[:, [0, -1]]) - 1) / 0.1
        return verdict("condition-number-near-one", "mean", least=over, largest=over)

    assert found(3200) == "holds" and found(320) == "fails"


def test_a_fixed_step_must_fit(page, world):
    values, share = world[32]
    t = torch.tensor([20])
    own = tens(theory.log_error(values, share, t)[:, 0]).mean(1)

    def found(part):
        step = part / theory.edges(32, 4)[1]
        fixed = tens(theory.log_error(values, share, t, step=torch.full((len(values),), step, **F64))[:, 0]).mean(1)
        diverging = tens((values[:, -1] * step > 2).double()).mean(1)
        known = verdict("fixed-step-for-one-distribution", "mean", ratio=fixed / own, diverging=diverging)
        return known, verdict("fixed-step-knows-the-length", "mean", diverging)

    assert found(1.0) == ("holds", "fails") and found(0.4) == ("fails", "fails")
    assert found(4.0) == ("fails", "holds")  # tokens twice as long


# --- The best steps ---


def test_the_limit_fails_for_other_schedules_and_other_momentum(page):
    d, n, loops = 128, 512, range(1, 7)
    values, _ = page["anatomy"](*page["prompts"](n, d, 16, torch.Generator().manual_seed(7)))
    ends = theory.edges(n, d)

    def found(id, squares, limit):  # (prompt, T)
        ratio = squares / torch.tensor(limit, **F64)
        return verdict(id, "mean", least=ratio.amin(1), largest=ratio.amax(1))

    def of(schedule):
        squares = torch.stack([theory.residuals(values, schedule(T))[:, -1].square().mean(1) for T in loops], 1)
        return found("d-over-n-a-loop", squares, [theory.least_mean_square(0.25, T) for T in loops])

    assert of(lambda T: theory.chebyshev_steps(*ends, T, kind=2)) == "holds"
    assert of(lambda T: theory.chebyshev_steps(*ends, T)) == of(lambda T: torch.full((T,), 1 / ends[1], **F64)) == "fails"

    def remembers(step, momentum):
        p = theory.momentum_residuals(values, step / n, momentum, 6)
        return found("memory-reaches-the-same-rate", p.square().mean(2)[:, 1:], [0.25**T for T in loops])

    assert remembers(1.0, 0.25) == "holds"
    assert remembers(1.0, 0.0) == remembers(1.0, 0.5) == remembers(0.6, 0.25) == "fails"


def test_the_training_gradient_is_autograds(page):
    g = torch.Generator().manual_seed(8)
    params = {"step": torch.randn(2, 3, generator=g, **F64), "b": torch.randn(2, 4, 4, generator=g, **F64)}
    x, theta = torch.randn(2, 5, 6, 4, generator=g, **F64), torch.randn(2, 5, 4, generator=g, **F64)
    leaves = {k: v.clone().requires_grad_() for k, v in params.items()}
    losses, _ = page["looped_error"](leaves, x.mT @ x / 6, theta)
    losses.sum().backward()
    again, by_hand = page["looped_error"](params, x.mT @ x / 6, theta)
    assert torch.allclose(losses, again)
    for k in params:
        assert torch.allclose(by_hand[k], leaves[k].grad, rtol=1e-10, atol=1e-10)
    path = theory.descent(x, (x @ theta[..., None])[..., 0], (params["step"] / 6)[:, None].expand(2, 5, 3))
    eye = torch.eye(4, **F64).expand(2, 4, 4)
    loss, _ = page["looped_error"]({"step": params["step"], "b": eye}, x.mT @ x / 6, theta)
    assert torch.allclose(loss, (path[-1] - theta).square().sum(-1).mean(1))


def test_equal_steps_have_equal_gradients(page):
    x = torch.randn(1, 50, 9, 4, generator=torch.Generator().manual_seed(9), **F64)
    theta = torch.randn(1, 50, 4, generator=torch.Generator().manual_seed(10), **F64)
    params = {"step": torch.full((1, 3), 0.4, **F64), "b": torch.eye(4, **F64)[None]}
    slope = page["looped_error"](params, x.mT @ x / 9, theta)[1]["step"]
    assert torch.allclose(slope, slope[:, :1].expand(1, 3))


def test_training_claims_fail_untrained_and_with_a_step_less(page):
    values, _ = page["anatomy"](*page["prompts"](32, 8, 8000, torch.Generator().manual_seed(11)))
    values = values / 32
    flat = values.flatten()
    best = theory.best_steps(flat, torch.full_like(flat, 1 / len(flat)), 4)

    def squares(runs):
        return np.array([theory.residuals(values, steps)[:, -1].square().mean().item() for steps in runs])

    least = squares([best])

    def finds(runs):
        known = runs.shape[1] == 4  # loops of three steps have no four to compare
        missed = (runs.sort(1).values / best.sort().values - 1).abs().amax(1) if known else torch.zeros(len(runs))
        return verdict("training-finds-the-best-steps", "mean", excess=squares(runs) / least - 1, deviation=missed)

    page["train_batch"] = 256
    trained = page["train"](4, 32, 400, torch.ones(8))["step"]
    assert finds(trained) == "holds"
    untrained = page["train"](4, 32, 10, torch.ones(8))["step"]
    assert finds(untrained) == finds(page["train"](3, 32, 400, torch.ones(8))["step"]) == "fails"
    own = theory.residuals(values, (1 / values[:, -1:]).expand(-1, 4))[:, -1].square().mean().item()
    cheb = squares([theory.chebyshev_steps(*theory.edges(1, 1 / 4), 4)])
    constant = torch.full((2, 4), 1 / values[:, -1].mean(), **F64)

    def beats(runs):
        papers = verdict("trained-steps-beat-the-papers", "mean", own / squares(runs))
        return papers, verdict("trained-steps-are-not-chebyshevs", "mean", min(cheb, own) / squares(runs))

    assert beats(trained) == ("holds", "holds") and beats(constant) == ("fails", "fails")


def test_values_learn_nothing_from_round_tokens(page):
    scale = torch.logspace(-0.25, 0.25, 8) ** math.log10(16.0)
    root = scale.double()
    gram, theta = page["gram_pool"](32, scale, 4000, torch.Generator().manual_seed(14))
    judge = [one.double().expand(2, *one.shape) for one in (gram, theta)]
    spectrum = torch.linalg.eigvalsh(judge[0][0]).flatten()
    alone = theory.best_steps(spectrum, torch.full_like(spectrum, 1 / len(spectrum)), 4)
    flat = page["spectra"](page["prompts"](32, 8, 4000, torch.Generator().manual_seed(15))[0]).flatten() / 32
    best = theory.best_steps(flat, torch.full_like(flat, 1 / len(flat)), 4)

    def error(step, b):
        return page["looped_error"]({"step": step.expand(2, 4), "b": b.expand(2, 8, 8)}, *judge)[0]

    def found(step, b):
        left = torch.linalg.cond(root[:, None] * b * root).expand(2) / 16
        gain = error(alone, torch.eye(8, **F64)) / error(step, b)
        beyond = error(step, b) / error(best, (1 / root**2).diag()) - 1
        match = verdict("learned-values-match-the-inverse", "mean", beyond)
        return verdict("values-learn-the-covariance", "mean", left=left, gain=gain), match

    assert found(best, (1 / root**2).diag()) == ("holds", "holds")
    assert found(alone, torch.eye(8, **F64)) == ("fails", "fails")
    page["train_batch"] = 256
    assert found(**page["train"](4, 32, 100, torch.ones(8), True))[0] == "fails"
    left = torch.linalg.cond(root[:, None] * page["train"](4, 32, 400, scale, True)["b"] * root) / 16
    assert verdict("values-learn-the-covariance", "mean", left=left, gain=[8.0, 8.0]) == "holds"


# --- Label noise ---


def test_noise_claims_fail_without_noise_and_with_another_count(page):
    x, theta = page["prompts"](32, 16, 6000, torch.Generator().manual_seed(12))
    values, _ = page["anatomy"](x[:1000], theta[:1000])
    p = theory.residuals(values, (1 / values[:, -1:]).expand(-1, 80))
    bias, spread = theory.prediction_square(p), theory.noise_square(values[:, None], p)

    def found(s):
        curve = bias + s**2 * spread
        better = verdict("more-loops-are-better", "exact", int((curve.diff() >= 0).sum()))
        groups = page["tenths"](curve)
        return better, verdict("more-loops-can-be-worse", "mean", groups.amin(1) / groups[:, -1])

    assert found(2.0) == ("fails", "holds") and found(0.0) == ("holds", "fails")
    assert found(0.5)[1] == "fails"
    noise = torch.randn(6000, 32, 1, generator=torch.Generator().manual_seed(13), **F64)
    error = torch.linalg.lstsq(x, 2 * noise).solution[..., 0]
    square = (error * theta).sum(-1).square()

    def ends(level):
        loops = {f"t{T}": [1.0, 1.0] for T in (1, 5, 20, 80)}
        return verdict("noise-tends-to-least-squares", "mean", solved=square / level, **loops)

    assert ends(4 / (32 - 16 - 1)) == "holds" and ends(4 / 32) == "fails"


def test_chebyshevs_steps_need_an_order(page):
    """Exercise ex-14-order."""
    g = torch.Generator().manual_seed(0)
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
