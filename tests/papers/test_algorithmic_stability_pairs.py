"""Paired runs differ in one point and nothing else."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mvnb import losses, training
from mvnb.models import MLP
from mvnb.papers.algorithmic_stability.networks import ResidualMLP
from mvnb.papers.algorithmic_stability.pairs import LockStep, sample_swaps


@given(size=st.integers(1, 30), pairs=st.integers(1, 5), seed=st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_sets_differ_in_one_position(size, pairs, seed):
    swaps = sample_swaps(30, 7, size, pairs, torch.Generator().manual_seed(seed))
    first, second = swaps.members
    assert first.shape == (pairs, size) and swaps.members.flatten(0, 1).shape == (2 * pairs, size)
    differ = first != second
    assert differ.sum(1).eq(1).all() and differ.int().argmax(1).equal(swaps.position)
    assert all(len(set(row.tolist())) == size and row.max() < 30 for row in first)
    incoming = second.gather(1, swaps.position[:, None])[:, 0] - 30
    assert incoming.equal(swaps.incoming) and incoming.min() >= 0 and incoming.max() < 7


def test_every_point_position_and_newcomer_can_be_drawn():
    swaps = sample_swaps(6, 3, 4, 400, torch.Generator().manual_seed(0))
    assert len(swaps.members[0].unique()) == 6
    assert len(swaps.position.unique()) == 4 and len(swaps.incoming.unique()) == 3


@pytest.mark.parametrize(("size", "pairs", "spare"), [(0, 1, 1), (9, 1, 1), (3, 0, 1), (3, 1, 0)])
def test_impossible_pairs_are_refused(size, pairs, spare):
    with pytest.raises(ValueError, match="must be"):
        sample_swaps(8, spare, size, pairs, torch.Generator())


X, Y = torch.randn(40, 6, generator=torch.Generator().manual_seed(5)), torch.arange(40) % 3


def lock_step(tables, batch=4, seeds=None):
    return LockStep(X, Y, tables, batch, seeds or [3] * len(tables))


def test_an_epoch_visits_every_position_once_without_the_rest():
    batches = lock_step([torch.arange(10)[None]])
    seen = [torch.cat([batches.positions(0, 2 * epoch + s) for s in (0, 1)]) for epoch in range(4)]
    assert all(len(e.unique()) == 8 for e in seen)
    assert not seen[0].equal(seen[1])
    again = lock_step([torch.arange(10)[None]])
    assert torch.cat([again.positions(0, 7), again.positions(0, 0)]).equal(torch.cat([seen[3][4:], seen[0][:4]]))


def test_rows_of_a_table_take_the_same_positions_and_tables_follow_their_seeds():
    tables = [torch.arange(12).view(1, 12).expand(2, -1), torch.arange(20, 32).view(1, 12), torch.arange(12).view(1, 12)]
    x, y = lock_step(tables, seeds=[3, 3, 4])(1)
    assert x.shape == (4, 4, 6) and y.shape == (4, 4)
    assert x[0].equal(x[1]) and not x[0].equal(x[3])
    rows = lock_step(tables, seeds=[3, 3, 4]).positions(0, 1)
    assert x[2].equal(X[20 + rows]) and y[2].equal(Y[20 + rows])


def test_lock_step_refuses_what_does_not_fit():
    with pytest.raises(ValueError, match="smallest set"):
        lock_step([torch.arange(3)[None]])
    with pytest.raises(ValueError, match="needs a seed"):
        LockStep(X, Y, [torch.arange(10)[None]], 2, [1, 2])


def test_visits_are_the_batches_that_hold_the_position():
    batches = lock_step([torch.arange(10)[None]])
    visits = batches.visits(0, torch.tensor([0, 7]), 20)
    assert visits.shape == (20, 2) and visits.view(10, 2, 2).sum(1).max() == 1
    assert all(bool((batches.positions(0, s) == 7).any()) == bool(visits[s, 1]) for s in range(20))


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("net", [MLP((6, 8, 3)), ResidualMLP(6, 3, 8, 1)])
def test_null_swaps_end_together_and_true_ones_part_at_the_first_visit(net, momentum):
    swaps = sample_swaps(30, 10, 12, 3, torch.Generator().manual_seed(1))
    null = swaps._replace(members=swaps.members[:1].expand(2, -1, -1))
    start, objective = training.stack([net] * 6), training.ModuleObjective(net, losses.cross_entropy)
    descent = training.SGD(0.1, momentum=momentum)

    def run(table, steps):
        return training.fit(objective, start, lock_step([table]), steps=steps, optimizer=descent).params

    def apart(params):
        return torch.stack([(v[:3] - v[3:]).abs().flatten(1).amax(1) for v in params.values()]).amax(0) > 1e-5

    assert not apart(run(null.members.flatten(0, 1), 15)).any()
    again = run(swaps.members.flatten(0, 1), 15)
    torch.testing.assert_close(run(swaps.members.flatten(0, 1), 15), again)
    visits = lock_step([swaps.members.flatten(0, 1)]).visits(0, swaps.position, 15)
    for steps in range(1, 8):
        assert apart(run(swaps.members.flatten(0, 1), steps)).equal(visits[:steps].any(0))
