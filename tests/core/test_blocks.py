"""Stacks computed in parts: the same results as at once, for all objectives that do so."""

import pytest
import torch

from mvnb import blocks
from mvnb.models import PatchObjective
from mvnb.papers.local_signal_adaptivity.training import SoftThresholdObjective
from mvnb.papers.mask_reconstruction.model import TeacherStudentObjective

REPLICAS = 7


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


LABELS = torch.randint(3, (REPLICAS, 16), generator=torch.Generator().manual_seed(5))
PATCHES = (0.2 * normal(REPLICAS, 16, 3, 20), LABELS, torch.ones(REPLICAS, 3))
FILTERS = {"weight": normal(REPLICAS, 3, 80, 20, seed=1)}
CASES = {
    "erm": (PatchObjective(3, 0.1), FILTERS, PATCHES),
    "midpoint": (PatchObjective(3, 0.1), FILTERS, (*PATCHES, 0.5)),
    "mixed": (PatchObjective(3, 0.1), FILTERS, (*PATCHES, normal(REPLICAS, 16, 16, seed=6).sigmoid())),
    "soft threshold": (
        SoftThresholdObjective(),
        {"w": normal(REPLICAS, 10), "b": -normal(REPLICAS, seed=1).abs()},
        (normal(REPLICAS, 50, 30, 10), normal(REPLICAS, 50, seed=3).sign()),
    ),
    "masked": (
        TeacherStudentObjective(3, 0.1),
        {"weight": normal(REPLICAS, 60, 20, seed=1)},
        (0.2 * normal(REPLICAS, 40, 30, 20), torch.rand(REPLICAS, generator=torch.Generator().manual_seed(1))),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_an_objective_is_that_of_each_replica_alone(name):
    objective, params, batch = CASES[name]
    loss, grads = objective(params, *batch)
    for r in range(REPLICAS):
        row = slice(r, r + 1)
        alone, slopes = objective({k: v[row] for k, v in params.items()}, *(v[row] if torch.is_tensor(v) else v for v in batch))
        torch.testing.assert_close(alone, loss[row])
        torch.testing.assert_close(slopes, {k: v[row] for k, v in grads.items()})


@pytest.mark.parametrize("size", [1, 3, 7, 100])
def test_parts_are_joined_along_replicas_and_what_has_no_axis_is_common(size):
    sizes = []

    def function(x, scale, none):
        sizes.append(len(x))
        return x * scale, {"sum": x.sum(1)}

    x = normal(REPLICAS, 4)
    scaled, sums = blocks.in_parts(function, (x, torch.tensor(2.0), None), size)
    assert torch.equal(scaled, 2 * x) and torch.equal(sums["sum"], x.sum(1))
    assert sum(sizes) == REPLICAS and max(sizes) == min(size, REPLICAS)


@pytest.mark.parametrize("rows, size", [((4, 3), 2), ((4, 3), 9), ((4, 4), 0)])
def test_parts_have_a_size_and_stacks_one_length(rows, size):
    with pytest.raises(ValueError, match="expected size of at least 1 and first axes of equal length, got"):
        blocks.in_parts(lambda x, y: x, [torch.ones(n, 2) for n in rows], size)
