"""The bit code of chapter 11, its rivals, and its accuracy with finite contexts."""

import itertools
import math

import numpy as np
import pytest

from mvnb.papers.icl_and_scale import parity_attention as parity

GAMMA = 0.15


@pytest.mark.parametrize(("small", "large"), [(1, 2), (1, 3), (2, 4), (2, 5)])
def test_margins_are_hamming_distances_and_the_norm_has_its_formula(small, large):
    _, _, pairs = parity.patterns(2**large, GAMMA)
    for used in (small, large):
        code = parity.bit_code(large, used, GAMMA)
        assert len(code.signs) == 2 * (used + 1)
        assert np.allclose(parity.margins(code, GAMMA), parity.hamming(pairs, used)[:, None], atol=1e-12)
        assert code.norm == pytest.approx(parity.bit_code_norm(large, used, GAMMA), rel=1e-12)
        assert np.linalg.matrix_rank(code.values) == used + 1
    failing = (parity.margins(parity.bit_code(large, small, GAMMA), GAMMA).min(1) < 0.5).sum()
    assert failing == 2**small * math.comb(2 ** (large - small), 2)  # pairs with equal first digits


def test_two_forms_of_the_code_agree_are_even_and_homogeneous():
    zeta = np.random.default_rng(0).normal(size=(100, 16))
    for used in (1, 3, 4):
        code = parity.bit_code(4, used, GAMMA)
        assert np.allclose(code(zeta), parity.bit_code_output(zeta, used, GAMMA), atol=1e-12)
        assert np.allclose(code(-zeta), code(zeta)) and np.allclose(code(3 * zeta), 3 * code(zeta))
    assert (parity.digits(4, 2) == parity.digits(4)[:2]).all()


def test_the_thesis_example_with_eight_features():
    code = parity.bit_code(3, 3, GAMMA)
    first = np.array([-1, 1, -1, 1, -1, 1, -1, 1]) / (4 * GAMMA)
    assert np.allclose(code.values[0], first) and np.allclose(code.values[3], -3 / (4 * GAMMA))
    assert np.allclose(code.values[4:], -code.values[:4]) and (code.signs == [-1, -1, -1, 1] * 2).all()


def test_rivals_solve_everything_with_less():
    six = parity.one_against_all(GAMMA)
    assert np.allclose(parity.margins(six, GAMMA), 1) and six.norm * GAMMA**2 == pytest.approx(2.75)
    assert six.norm < parity.bit_code(2, 2, GAMMA).norm
    for heads, size, bits in ((5, 2, 3), (6, 3, 4)):
        rival, code = parity.subset_code(heads, size, 2**bits, GAMMA), parity.bit_code(bits, bits, GAMMA)
        assert parity.margins(rival, GAMMA).min() >= 1 - 1e-12
        assert len(rival.signs) < len(code.signs) and rival.norm < code.norm
    with pytest.raises(ValueError, match="fewer than 8"):
        parity.subset_code(4, 2, 8, GAMMA)


@pytest.mark.parametrize("d", [2, 3, 4, 8, 16, 33])
def test_four_heads_put_any_number_of_features_in_order(d):
    four = parity.ordering_code(d, GAMMA)
    i, j = parity.patterns(d, GAMMA)[2].T + 1
    margins = parity.margins(four, GAMMA)  # of the signs (1, 1), (1, -1), (-1, 1), (-1, -1)
    assert np.allclose(margins[:, 1:3].T, abs(i - j)) and np.allclose(margins[:, [0, 3]].T, d - 1 - abs(i + j - d - 1))
    assert margins.min() == pytest.approx(1) and len(four.signs) == 4
    assert four.norm * GAMMA**2 == pytest.approx(d * (d - 1) * (2 * d - 1) / 12)


def test_three_heads_of_any_kind_do_not_solve_a_task_unless_a_pattern_never_occurs():
    rng = np.random.default_rng(3)
    for d in (2, 3):
        task, phi = np.eye(d)[:2].sum(0), rng.permutation(np.array(list(itertools.product((-1, 1), repeat=d))))
        for signs in ((1, 1, -1), (1, -1, -1)):
            heads = rng.normal(size=(5000, 3, d, d)) @ phi.T  # V not diagonal: (network, head, d, point)
            outputs = (np.maximum(np.einsum("i,nhip->nhp", task, heads), 0) * np.array(signs)[:, None]).sum(1)
            assert ((outputs * phi[:, 0] * phi[:, 1]).min(1) <= 0).all()
    four = parity.ordering_code(2, GAMMA)
    three = parity.Heads(np.delete(four.signs, 2), np.delete(four.values, 2, 0))  # without a positive head
    margins = parity.margins(three, GAMMA)[0]
    assert margins[:3].min() >= 1 - 1e-12 and margins[3] < 1e-12  # (-1, -1) does not occur for gamma = 1/4


def test_contexts_are_distributed_like_simulated_ones():
    rng, n, d, m = np.random.default_rng(0), 20_000, 4, 6
    pairs = np.tile([[0, 2]], (n, 1))
    for flip in (0.0, 0.3):
        zeta, y = parity.context_signal(pairs, d, m, GAMMA, rng, flip)
        chance = [0.25 + GAMMA, 0.25, 0.25, 0.25 - GAMMA]
        signs = np.array([(1, 1), (1, -1), (-1, 1), (-1, -1)])
        phi = rng.choice([-1.0, 1.0], (n, m + 1, d))
        phi[:, :, [0, 2]] = signs[rng.choice(4, (n, m + 1), p=chance)]
        labels = phi[:, :, 0] * phi[:, :, 2]
        turned = np.where(rng.random((n, m)) < flip, -1, 1) * labels[:, :m]
        other = np.einsum("nm,nmd->nd", turned, phi[:, :m]) / m * phi[:, m]
        for f in (lambda z, t: z, lambda z, t: z * t[:, None], lambda z, t: z**2, lambda z, t: z[:, :1] * z * t[:, None]):
            a, b = f(zeta, y), f(other, labels[:, m])
            assert (np.abs(a.mean(0) - b.mean(0)) < 5 * np.sqrt((a.var(0) + b.var(0)) / n) + 1e-12).all()


def test_signal_and_accuracy_laws():
    for kappa in (0.5, 1.5, 3.0):
        assert parity.gaussian_accuracy(kappa, 1, 200_000) == pytest.approx(parity.small_accuracy(kappa), abs=0.005)
    assert parity.gaussian_accuracy(20.0, 4) == 1 and parity.small_accuracy(0.0) == pytest.approx(0.5)
    assert parity.signal_to_noise(16, 256, 0.2) == pytest.approx(3.2)
    assert parity.signal_to_noise(16, 256, 0.2, 0.25) == pytest.approx(1.6)
    rng = np.random.default_rng(1)
    zeta, y = parity.context_signal(np.tile([[0, 1]], (20_000, 1)), 64, 4096, 0.2, rng)
    seen = (y * parity.bit_code_output(zeta, 6, 0.2) > 0).mean()
    assert seen == pytest.approx(parity.gaussian_accuracy(parity.signal_to_noise(64, 4096, 0.2), 6), abs=0.015)


def test_projected_noise_has_the_stated_power():
    noise = np.random.default_rng(2).choice([-1.0, 1.0], (4000, 8, 16)).mean(1)
    for used in (1, 4):
        power = parity.projected_noise(parity.bit_code(4, used, GAMMA), noise).mean()
        assert power == pytest.approx((used + 1) / 8, rel=0.05)


@pytest.mark.parametrize(("gamma", "used"), [(0.0, 1), (0.25, 1), (0.1, 0), (0.1, 3)])
def test_impossible_codes_are_refused(gamma, used):
    with pytest.raises(ValueError, match="gamma must"):
        parity.bit_code(2, used, gamma)
