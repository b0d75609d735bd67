"""Replicas on several threads: the same results, whatever is raised, and no thread more than was asked for."""

import os
import subprocess
import sys
import threading

import pytest
import torch

from mvnb import threads, training
from mvnb.models import PatchObjective, TwoLayerObjective
from mvnb.papers.local_signal_adaptivity.soft_threshold import SoftThresholdObjective

REPLICAS = 7


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def signs(*shape):
    return normal(*shape, seed=3).sign()


LABELS = torch.randint(3, (REPLICAS, 16), generator=torch.Generator().manual_seed(5))
PATCHES = (0.2 * normal(REPLICAS, 16, 3, 20), LABELS, torch.ones(REPLICAS, 3))
FILTERS = {"weight": normal(REPLICAS, 3, 80, 20, seed=1)}
UNITS = {"w": normal(REPLICAS, 120, 20, seed=1), "b": normal(REPLICAS, 120, seed=2), "a": normal(REPLICAS, 120, seed=4)}
CASES = {
    "erm": (PatchObjective(3, 0.1), FILTERS, PATCHES),
    "midpoint": (PatchObjective(3, 0.1), FILTERS, (*PATCHES, 0.5)),
    "mixed": (PatchObjective(3, 0.1), FILTERS, (*PATCHES, normal(REPLICAS, 16, 16, seed=6).sigmoid())),
    "two layers": (TwoLayerObjective(), UNITS, (normal(REPLICAS, 90, 20), signs(REPLICAS, 90))),
    "soft threshold": (
        SoftThresholdObjective(),
        {"w": normal(REPLICAS, 10), "b": -normal(REPLICAS, seed=1).abs()},
        (normal(REPLICAS, 50, 30, 10), signs(REPLICAS, 50)),
    ),
}


@pytest.fixture
def several(monkeypatch):
    """Sets the number of threads; the names of those that took part are in the set that it returns."""
    names = set()
    spread = threads.spread

    def watched(function, parts):
        def named(*part):
            names.add(threading.current_thread().name)
            meeting.wait(10)  # so that no thread takes all parts before the others are awake
            return function(*part)

        meeting = threading.Barrier(min(threads.budget(), len(parts)))
        return spread(named, parts[: len(parts) // meeting.parties * meeting.parties]) + [
            function(*part) for part in parts[len(parts) // meeting.parties * meeting.parties :]
        ]

    def use(count):
        monkeypatch.setenv("MVNB_THREADS", str(count))
        monkeypatch.setattr(threads, "spread", watched)
        names.clear()
        return names

    return use


@pytest.mark.parametrize("name", CASES)
def test_an_objective_is_the_same_on_any_number_of_threads(name, several):
    objective, params, batch = CASES[name]
    loss, grads = objective(params, *batch)
    for count in (2, 3):
        names = several(count)
        again, slopes = objective(params, *batch)
        assert len(names) == count
        torch.testing.assert_close(again, loss)
        torch.testing.assert_close(slopes, grads)


def test_fresh_samples_are_the_same_to_the_bit_and_so_is_their_order(several):
    def draw(n, generator):
        return (torch.randn(n, 4, generator=generator),)

    def stream():
        return training.Fresh(draw, 5, training.generators(3, REPLICAS), block=2)

    alone = stream()
    expected = [alone(step) for step in range(5)]
    names, together = several(3), stream()
    for step, batch in enumerate(expected):
        assert torch.equal(together(step)[0], batch[0])
    assert len(names) == 3


def test_a_fit_is_the_same_on_two_threads(several):
    def run():
        objective, params, batch = CASES["erm"]
        return training.fit(objective, params, batch, steps=20, optimizer=training.GD(0.1))

    alone, names = run(), several(2)
    together = run()
    assert len(names) == 2
    torch.testing.assert_close(together.params, alone.params)
    torch.testing.assert_close(together.log, alone.log)


def test_helpers_take_subnormal_numbers_for_zero_where_the_caller_does(several):
    tiny = torch.tensor([1e-40])
    several(2)
    for _ in range(2):
        with threads.without_subnormals():
            assert not any(threads.spread(lambda i: (tiny * 1).item(), [(0,), (1,)]))
        assert all(threads.spread(lambda i: (tiny * 1).item(), [(0,), (1,)]))


@pytest.mark.parametrize("fails", ["MainThread", "mvnb-replicas"])
def test_what_a_part_raises_is_raised_when_all_are_at_rest(fails, several):
    several(2)
    done = []

    def part(i):
        if threading.current_thread().name.startswith(fails):
            raise KeyError(i)
        done.append(i)

    with pytest.raises(KeyError):
        threads.spread(part, [(0,), (1,)])
    assert len(done) == 1


FORK = """
import os, signal
from mvnb import threads
assert threads.spread(abs, [(1,), (2,)]) == [1, 2]
child = os.fork()
if child == 0:
    signal.alarm(20)  # what waits for threads that do not exist waits for ever
    os._exit(threads.spread(abs, [(-1,), (-2,)]) != [1, 2])
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_process_that_was_forked_has_threads_of_its_own():
    environment = os.environ | {"MVNB_THREADS": "2", "OMP_NUM_THREADS": "1"}
    assert subprocess.run([sys.executable, "-c", FORK], env=environment).returncode == 0


def test_the_environment_says_how_many_threads_there_are(monkeypatch):
    monkeypatch.delenv("MVNB_THREADS", raising=False)
    assert threads.budget() == 1
    monkeypatch.setenv("MVNB_THREADS", "3")
    assert threads.budget() == 3
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert threads.budget() == 1  # each of the three would start two
    finally:
        torch.set_num_threads(before)
    for wrong in ("0", "two", "-1", "", "1.5"):
        monkeypatch.setenv("MVNB_THREADS", wrong)
        with pytest.raises(ValueError, match="MVNB_THREADS must be a positive integer"):
            threads.budget()


def test_small_stacks_stay_together_and_large_ones_give_every_thread_its_share(monkeypatch):
    assert threads.at_once(8, 20_000, cached=100_000) == 5
    monkeypatch.setenv("MVNB_THREADS", "2")
    assert threads.at_once(8, 10) >= 8
    assert threads.at_once(8, 10, uses=1000) == 4
    assert threads.at_once(8, 10_000) == 4
    assert threads.at_once(32, 20_000, cached=100_000) == 4  # seven parts of five would leave one thread idle at the end
    assert threads.at_once(1, 10**9) == 1
