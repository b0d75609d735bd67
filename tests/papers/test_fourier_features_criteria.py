"""The rules of chapter 10 hold for what they judge and fail for what they do not.

What is judged are the chapter's own functions, on networks that are built, broken or trained small.
"""

import math
from functools import partial

import chapter_source
import judged
import numpy as np
import pytest
import torch

from mvnb import training
from mvnb.models import initial_parameters, transformer_logits
from mvnb.papers.fourier_features import theory
from mvnb.papers.fourier_features.data import ModularSum
from mvnb.papers.fourier_features.polynomial import _neuron_norms, group_norm

K, P = 3, 11
verdict = partial(judged.verdict, "fourier_features")


@pytest.fixture(scope="module")
def page():
    space = chapter_source.functions_of("10_fourier_features")
    space |= {"k": K, "p": P, "half": (P - 1) // 2, "width": 16 * (P - 1), "HEADS": 4, "head_p": P}
    space |= {"world": ModularSum(P, K), "best": theory.max_margin(K, P), "seed": 1000, "replicas": 2}
    space |= {"batch": 256, "steps": 1500, "step_size": 0.02}
    return space


def built(copies=2, phases=None):
    """The thesis's construction as a stack of equal replicas."""
    u, w = theory.network(theory.sign_phases(K) if phases is None else phases, P)
    u, w = torch.tensor(u).float(), torch.tensor(w).float()
    return {"u": u.expand(copies, *u.shape).clone(), "w": w.expand(copies, *w.shape).clone()}


def measured(page, params, start=0.34):
    """Verdicts on a stack in the place of the trained networks."""
    s = page["anatomy"](params)
    page["seen"] = {"one": s}
    pure, purity = page["pure"]("one"), page["mean_purity"]("one")
    even = [page["evenness"](*one) for one in zip(s["main"], s["alive"])]
    margin = page["margins"](params).amin(1)
    phases = {name: page["medians"](s[name], s["alive"], none) for name, none in (("defect", math.pi), ("balance", 0.0))}
    shares, runs = (s["share"] - 1).square().mean(1).sqrt(), len(margin)
    return {
        "single-frequency-neurons": verdict("single-frequency-neurons", "mean", pure=pure, purity=purity, start=[start] * runs),
        "single-frequency-at-half-split": verdict("single-frequency-at-half-split", "mean", pure),
        "half-split-generalises": verdict("half-split-generalises", "mean", purity=purity, accuracy=[1.0] * runs),
        "all-frequencies-are-used": verdict("all-frequencies-are-used", "mean", even),
        "equal-shares": verdict("equal-shares", "mean", norm=shares, decay=[0.3] * runs),
        "phases-and-amplitudes": verdict("phases-and-amplitudes", "mean", **phases),
        "margin-grows-to-the-optimum": verdict(
            "margin-grows-to-the-optimum", "mean", end=margin - 1e-3, rise=margin, highest=margin - 1e-3
        ),
        "weak-decay-is-no-substitute": verdict("weak-decay-is-no-substitute", "mean", pure=pure, margin=[-0.5] * runs),
    }


# --- Networks ---


def test_the_construction_is_what_training_should_find(page):
    params = built()
    assert (page["margins"](params) - 1).abs().max() < 1e-3
    assert (page["margins"](page["pruned"](params)) > 0).all()
    found = measured(page, params)
    assert found.pop("weak-decay-is-no-substitute") == "fails" and set(found.values()) == {"holds"}
    assert measured(page, params, start=0.9)["single-frequency-neurons"] == "fails"


def test_an_untrained_network_is_not(page):
    g = torch.Generator().manual_seed(0)
    params = {"u": torch.randn(8, K, P, 160, generator=g), "w": torch.randn(8, 160, P, generator=g)}
    found = measured(page, params)
    assert found.pop("weak-decay-is-no-substitute") == "holds"
    assert found.pop("all-frequencies-are-used") != "fails"  # by chance, too, as long as no frequency is favoured
    assert set(found.values()) == {"fails"}


def test_two_frequencies_in_a_neuron_are_noticed(page):
    params = built()
    other = {n: v.roll(160 // 5, dims=-1 if n == "u" else 1) for n, v in params.items()}
    found = measured(page, {n: v + 0.6 * other[n] for n, v in params.items()})
    assert found["single-frequency-neurons"] == found["single-frequency-at-half-split"] == "fails"


def test_unequal_shares_phases_and_amplitudes_are_noticed(page):
    params = built()
    louder = {n: v.clone() for n, v in params.items()}
    louder["u"][..., :32] *= 1.04
    louder["w"][:, :32] *= 1.04
    assert measured(page, louder)["equal-shares"] == "fails"
    assert page["margins"](louder).min() < 1
    for broken in ({**params, "w": params["w"].roll(1, 2)}, {**params, "w": 1.1 * params["w"]}):
        assert measured(page, broken)["phases-and-amplitudes"] == "fails"


def test_a_network_without_a_frequency_is_noticed(page):
    params = built()
    fewer = {"u": params["u"][..., 32:], "w": params["w"][:, 32:]}
    assert measured(page, fewer)["all-frequencies-are-used"] == "fails"
    assert page["margins"](fewer).min() < 0.9


def test_pruning_to_the_wrong_frequency_destroys(page):
    params, right = built(), page["anatomy"]
    train = torch.stack([page["world"].split(0.5, g) for g in training.generators(0, 2)])
    assert verdict("pruned-to-theory", "mean", page["test_accuracy"](page["pruned"](params), train)) == "holds"
    g = torch.Generator().manual_seed(0)
    noisy = {n: v + 0.3 * v.std() * torch.randn(v.shape, generator=g) for n, v in params.items()}
    page["anatomy"] = lambda q: {"main": (right(q)["main"] + 1) % 5}
    try:
        assert verdict("pruned-to-theory", "mean", page["test_accuracy"](page["pruned"](noisy), train)) == "fails"
    finally:
        page["anatomy"] = right


def test_margins_are_normalised(page):
    params = built()
    double = {n: 2 * v for n, v in params.items()}
    torch.testing.assert_close(page["margins"](double), page["margins"](params))
    torch.testing.assert_close(group_norm(params), torch.ones(2), rtol=1e-5, atol=1e-5)
    assert _neuron_norms(params).std() < 1e-6


def test_the_norm_and_weak_decay_train_to_different_things(page):
    _, _, norm = page["learn"](0.95, 0.005, 0.0, 3)
    _, _, weak = page["learn"](0.5, 0.0, 0.005, 3)
    assert norm.log["margin"][-1].min() > 0.4 > 0 > weak.log["margin"][-1].max()
    assert (norm.log["margin"] <= 1).all()
    found = {name: page["anatomy"](run.params) for name, run in (("norm", norm), ("weak", weak))}
    assert found["norm"]["share"].std() < found["weak"]["share"].std() / 4
    page["seen"] = found
    assert page["pure"]("norm").min() > 0.6
    assert not page["pure"]("weak").max() > 0.4
    against = {"pure": page["pure"]("norm"), "margin": norm.log["margin"][-1]}
    assert verdict("weak-decay-is-no-substitute", "mean", **against) == "fails"
    no_loss = {"pure": [1.0, 1.0], "margin": [1.0, 1.0]}
    assert verdict("strong-decay-gives-frequencies-without-the-margin", "mean", **no_loss) == "fails"


# --- Theory ---


def outputs(phases, p=7):
    """Largest deviation from the optimal outputs, in units of the margin."""
    u, w = theory.network(phases, p)
    world = ModularSum(p, 3)
    out = (sum(torch.tensor(u[j])[world.points[:, j]] for j in range(3)) ** 3 @ torch.tensor(w)).numpy()
    return np.abs(out / theory.max_margin(3, p) - np.eye(p)[world.labels.numpy()] + 1 / p).max()


def test_half_of_the_construction_does_not_attain_the_margin():
    whole, half = (outputs(theory.sign_phases(3)[:n]) for n in (32, 16))
    assert [verdict("margin-is-attained", "exact", one) for one in (whole, half)] == ["holds", "fails"]
    few = {"cyclic": whole, "halved": outputs(theory.halved_phases()), "two": 6}
    assert [verdict("fewer-neurons-do", "exact", three=n, **few) for n in (16, 18)] == ["holds", "fails"]


def test_neither_another_formula_nor_a_mixed_neuron_passes_for_the_best():
    u, w = theory.network(theory.sign_phases(3)[:1], 11)
    one, other = ([part[..., f] for part in (u, w.T)] for f in (0, 1))  # of two frequencies

    def found(parts, formula):
        v = np.concatenate([parts[0], parts[1][None]])
        v /= np.sqrt((v**2).sum())
        power = np.abs(np.fft.rfft(v)[:, 1:]) ** 2
        mixed = 1 - (power.max(1) / power.sum(1)).min()
        return verdict("nothing-gets-more", "exact", value=theory.neuron_margin(v[:3], v[3]) / formula - 1, mixed=mixed)

    assert found(one, theory.max_margin(3, 11)) == "holds"
    assert found([a + b for a, b in zip(one, other)], theory.max_margin(3, 11)) == "fails"
    for wrong in (2 * math.factorial(3) / (8**2 * 10 * 11**1.1), 2 * math.factorial(3) / (8**2 * 11 * 11)):
        assert found(one, wrong) == "fails"


# --- Attention ---


def cosines_of(page, w):
    turn = 2 * math.pi * torch.arange(P, dtype=torch.float64)[:, None] / P
    circle = torch.cat([turn.cos(), turn.sin(), torch.zeros(P, 62)], 1)
    return page["heads"](circle[None], w)


def test_top_share_tells_cosines_from_noise(page):
    g = torch.Generator().manual_seed(0)
    w = torch.randn(1, 64, 192, generator=g).double()
    cosines = page["top_share"](cosines_of(page, w)).mean().item()
    page["head_p"] = 59
    noise = page["top_share"](page["heads"](torch.randn(1, 59, 64, generator=g), w)).mean().item()
    page["head_p"] = P

    def found(share, start, heart):
        named = {"value": [share] * 2, "start": [start / share] * 2, "heart": [heart / share] * 2}
        return verdict("two-dimensional-cosines", "mean", **named)

    assert found(cosines, noise, noise) == "holds"
    assert found(noise, noise, noise) == found(cosines, noise, cosines) == "fails"
    inherited = {"matrix": [cosines, cosines], "embedding": [noise / cosines] * 2}
    assert verdict("cosines-are-the-embeddings", "mean", **inherited) == "holds"
    swapped = dict(zip(inherited, reversed(inherited.values())))
    assert verdict("cosines-are-the-embeddings", "mean", **swapped) == "fails"


def test_a_query_that_counts_changes_the_answers():
    each = initial_parameters(P + 1, 3, 64, 1, torch.Generator().manual_seed(0), std=0.3, dtype=torch.float64)
    params = {n: v[None] for n, v in each.items()}
    x = torch.cat([ModularSum(P, 2).points, torch.full((P * P, 1), P)], 1)[None]
    asks = params["embedding"][:, P] + params["positions"][:, 2]
    z = torch.randn(1, 64, 64, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    idle = z - asks[..., None] @ (asks[:, None] @ z) / asks.square().sum()
    moved = []
    for change in (idle, z):
        other = {**params, "layers.qkv": params["layers.qkv"].clone()}
        other["layers.qkv"][:, 0, :, :64] += change
        outputs = [transformer_logits(q, x, 3, n_heads=4, norm="none", last=True) for q in (params, other)]
        moved.append((outputs[0] - outputs[1]).abs().max() / outputs[0].abs().max())
    assert [verdict("numbers-never-ask", "exact", one) for one in moved] == ["holds", "fails"]


def test_twin_criterion_needs_memory_and_symmetry():
    world = ModularSum(13, 2)
    train = world.split(0.5, torch.Generator().manual_seed(0))
    twin = world.with_twin(train) & ~train
    assert twin.any() and (~twin & ~train).any()
    oracle, table = torch.ones(169), (train | twin).float()  # one that adds, one that knows what it saw in any order
    ordered = train.float()  # and one that knows it in its order only

    def found(right):
        on_twins, lone, known = (right[one].mean() for one in (twin, ~twin & ~train, train))
        return verdict("memory-knows-twins", "mean", twin=[on_twins] * 2, lone=[lone] * 2, training=[known] * 2)

    assert [found(v) for v in (oracle, table, ordered)] == ["fails", "holds", "fails"]


def test_lags(page):
    looks = [0, 50, 100, 150, 200]
    curve = torch.tensor([[0.0, 0.0], [0.9, 0.1], [1.0, 0.5], [1.0, 0.95], [1.0, 0.95]])[:, None]
    assert page["lags"](curve, looks).tolist() == pytest.approx([50 * (0.8 + 0.5)])
    together = curve[..., :1].expand_as(curve)
    assert page["lags"](together, looks).tolist() == [0]
    never = torch.tensor([[1.0, 0.0]] * 5)[:, None]  # jumps: the lag is the time between them
    assert page["lags"](never, looks).tolist() == [200]
    slow, quick = page["lags"](never, looks), page["lags"](curve, looks)

    def found(id, ratio, **named):
        return verdict(id, "mean", *([] if named else [ratio.repeat(2)]), **{n: v.repeat(2) for n, v in named.items()})

    for id in ("grokking-weakens-with-k", "grokking-weakens-without-twins"):
        assert [found(id, one / slow) for one in (quick, 2 * quick, slow)] == ["holds", "fails", "fails"]
    id = "longer-grokking-weakens-with-k"
    assert [found(id, None, three=one / slow, four=quick / slow) for one in (quick, slow)] == ["holds", "fails"]
    id = "longer-grokking-weakens-without-twins"
    assert [found(id, None, three=slow / slow, four=one / slow) for one in (quick, slow)] == ["holds", "fails"]
