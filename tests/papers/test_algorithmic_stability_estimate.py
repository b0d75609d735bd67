"""What chapter 04 reads off a pair of runs: its own functions, taken from its source, on small problems in float64."""

import ast
from pathlib import Path

import numpy as np
import pytest
import torch

from mvnb import probes, training
from mvnb.papers.algorithmic_stability import measures
from mvnb.papers.algorithmic_stability.pairs import LockStep, sample_swaps

SOURCE = Path(__file__).resolve().parents[2] / "notebooks" / "04_algorithmic_stability.py"
POOL, TEST, PAIRS, SIZE = 40, 30, 5, 20


@pytest.fixture(scope="module")
def chapter():
    """The functions of the chapter that measure, for one trial on the CPU."""
    wanted = {"point_losses", "on_training_sets", "read_out"}
    found = [n for n in ast.parse(SOURCE.read_text()).body if isinstance(n, ast.FunctionDef) and n.name in wanted]
    assert {n.name for n in found} == wanted
    space = {"torch": torch, "probes": probes, "measures": measures, "device": torch.device("cpu"), "trials": 1}
    exec(compile(ast.Module(found, []), str(SOURCE), "exec"), space)
    return space


@pytest.fixture(scope="module")
def problem():
    """Points, labels of three classes and one size of pairs; the first test point comes into every S'."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(POOL + TEST, 4, generator=g, dtype=torch.float64)
    y = torch.randint(3, (POOL + TEST,), generator=g)
    swaps = sample_swaps(POOL, 1, SIZE, PAIRS, g)
    return x, y, swaps


def trained(x, y, tables):
    """Softmax regression in lock-step: weights (R, 4, 3)."""

    def objective(params, x, y):
        w = params["w"]
        p = (x @ w).softmax(-1)
        wrong = (p - torch.nn.functional.one_hot(y, 3)) / y.shape[1]
        return -p.gather(-1, y[..., None]).log().mean((1, 2)), {"w": x.mT @ wrong}

    batches = LockStep(x, y, [tables], 5, [3])
    start = {"w": torch.zeros(len(tables), 4, 3, dtype=torch.float64)}
    return training.fit(objective, start, batches, steps=60, optimizer=training.SGD(0.5)).params


def measured(chapter, problem, params, points=TEST):
    x, y, swaps = problem
    logits = lambda p, rows: x[rows] @ p["w"]  # noqa: E731
    values = chapter["read_out"](params, [swaps], logits, y[: POOL + points], POOL, ["w"])
    return {k: v[0, 0] for k, v in values.items()}  # (pairs,)


def test_the_estimate_is_the_largest_change_of_a_test_loss(chapter, problem):
    x, y, swaps = problem
    params = trained(x, y, swaps.members.flatten(0, 1))
    loss = torch.nn.functional.cross_entropy
    got = measured(chapter, problem, params)
    for p in range(PAIRS):
        losses = [loss(x[POOL:] @ params["w"][r], y[POOL:], reduction="none") for r in (p, PAIRS + p)]
        change = (losses[0] - losses[1]).numpy()
        assert np.isclose(got["stability"][p], np.abs(change).max(), rtol=1e-12) and got["stability"][p] > 0
        assert np.isclose(got["at z"][p], change[0]) and np.isclose(got["without z"][p], np.abs(change[1:]).max())
        own = loss(x[swaps.members[0, p]] @ params["w"][p], y[swaps.members[0, p]])
        assert np.isclose(got["raw gap"][p], (losses[0].mean() - own).item())
        assert np.isclose(got["distance"][p], (params["w"][p] - params["w"][PAIRS + p]).norm())
    assert (got["without z"] <= got["stability"]).all() and (got["gap"] >= got["raw gap"]).all()


def test_it_is_symmetric_in_both_sets(chapter, problem):
    """Train on S' and S in place of S and S': the same runs, exchanged, and the same estimate."""
    x, y, swaps = problem
    there, back = trained(x, y, swaps.members.flatten(0, 1)), trained(x, y, swaps.members.flip(0).flatten(0, 1))
    torch.testing.assert_close(there["w"], back["w"].roll(PAIRS, 0))
    one, other = measured(chapter, problem, there), measured(chapter, problem, back)
    for name in ("stability", "without z", "distance", "normalised"):
        np.testing.assert_allclose(one[name], other[name], atol=1e-9)
    np.testing.assert_allclose(one["at z"], -other["at z"], atol=1e-9)


def test_it_never_falls_when_the_test_set_or_the_number_of_pairs_grows(chapter, problem):
    params = trained(*problem[:2], problem[2].members.flatten(0, 1))
    by_test = np.stack([measured(chapter, problem, params, n)["stability"] for n in range(2, TEST + 1)])
    assert (np.diff(by_test, axis=0) >= -1e-9).all() and (by_test[-1] > by_test[0]).any()
    tops = [by_test[-1][:pairs].max() for pairs in range(1, PAIRS + 1)]  # what stands for the supremum
    assert (np.diff(tops) >= 0).all()


def test_equal_sets_have_none(chapter, problem):
    x, y, swaps = problem
    same = trained(x, y, torch.cat([swaps.members[0]] * 2))
    got = measured(chapter, problem, same)
    assert all((abs(got[name]) < 1e-9).all() for name in ("stability", "without z", "at z", "distance", "normalised"))
