"""A stack whose members differ, stop and go on is still its members; feature coordinates are the whole space."""

import contextlib
import copy
import math
import pickle

import card
import pytest
import torch
from hostile import Command
from torch import nn
from torch.nn import functional as F

from mvnb import losses, training
from mvnb.data import MultiView, Patches, SimpleMultiView
from mvnb.models import PatchObjective

WORLD = MultiView(3, 30, noise_low=0.02, noise_high=0.05, balanced=True)
FIELDS = ("loss", "time", "w", "b")
LOOKS = {"w": lambda p: p["w"], "b": lambda p: p["b"][:, 0]}
SIZES = torch.tensor([0.2, 0.5, 1.1], dtype=torch.float64)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


def regression(params, x, y):
    """Logistic loss of a linear classifier: smooth, and each replica's numbers do not depend on who is beside it."""
    margin = y * ((x * params["w"][:, None]).sum(-1) + params["b"])
    push = -torch.sigmoid(-margin) * y / y.shape[1]
    return F.softplus(-margin).mean(1), {"w": (push[..., None] * x).sum(1), "b": push.sum(1, keepdim=True)}


def problem(replicas=3, seed=0):
    """Start and full batch; some labels are wrong, so that there is a finite best classifier."""
    x = normal(replicas, 12, 4, seed=seed)
    y = torch.sign(x[..., 0] + 0.5 * x[..., 1] + normal(replicas, 12, seed=seed + 1))
    return {"w": normal(replicas, 4, seed=seed + 2), "b": normal(replicas, 1, seed=seed + 3)}, (x, y)


def points(n, generator):
    x = torch.randn(n, 4, generator=generator, dtype=torch.float64)
    return x, torch.sign(x[:, 0] + torch.randn(n, generator=generator, dtype=torch.float64))


def fresh(replicas=3, seed=40, block=4):
    return training.Fresh(points, 6, training.generators(seed, replicas), block)


def train(start, batches, optimizer, steps=24, **how):
    how = {"probes": LOOKS, "log_at": range(0, steps + 1, 3)} | how
    return training.fit(regression, start, batches, steps=steps, optimizer=optimizer, **how)


def same(one, other):
    """Bit for bit."""
    assert one.params.keys() == other.params.keys() and one.log.keys() == other.log.keys()
    assert one.steps.tolist() == other.steps.tolist() and one.step == other.step
    assert torch.equal(one.running, other.running)
    assert all(torch.equal(p, other.params[k]) for k, p in one.params.items())
    assert all(torch.equal(rows, other.log[k]) for k, rows in one.log.items())


OPTIMIZERS = {
    "gd": training.SGD(0.5),
    "momentum": training.SGD(SIZES, momentum=0.8, weight_decay=0.01, rates={"b": 0.3}),
    "schedule": training.SGD(lambda step: SIZES / (1 + 0.1 * step), momentum=0.5),
    "adam": training.AdamW(0.2 * SIZES, weight_decay=0.1),
    "flow": training.FlowGD(max_step=1.5, relative=0.2, absolute=0.05, knee=1.5),
}
each_optimizer = pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
BATCHES = {"fixed": lambda: problem()[1], "fresh": fresh}
each_batch = pytest.mark.parametrize("batches", BATCHES.values(), ids=BATCHES)


# --- step sizes ---

MAKERS = {
    "gd": training.SGD,
    "rates": lambda eta: training.SGD(eta, rates={"b": 0.25}),
    "momentum": lambda eta: training.SGD(eta, momentum=0.7, weight_decay=0.05),
    "adam": training.Adam,
    "decay": lambda eta: training.Adam(eta, weight_decay=0.3),
    "adamw": lambda eta: training.AdamW(eta, weight_decay=0.3),
}
each_maker = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


@each_maker
@pytest.mark.parametrize("scheduled", [False, True])
def test_a_replica_with_its_own_step_size_is_a_single_run_with_that_number(make, scheduled):
    start, batch = problem()

    def size(number):
        return (lambda step: number / (1 + step)) if scheduled else number

    run = train(start, batch, make(size(SIZES)))
    for r, number in enumerate(SIZES.tolist()):
        alone = train({k: p[[r]] for k, p in start.items()}, tuple(part[[r]] for part in batch), make(size(number)))
        assert all(torch.allclose(run.params[k][r], p[0], atol=1e-12, rtol=0) for k, p in alone.params.items())
        assert all(torch.allclose(run.log[k][:, r], alone.log[k][:, 0], atol=1e-12, rtol=0) for k in FIELDS)
        passed = number * (sum(1 / (1 + step) for step in range(24)) if scheduled else 24)
        assert run.log["time"][-1, r].item() == pytest.approx(passed)
    assert (run.params["w"] - start["w"]).abs().amax(1).min() > 0.05


def test_a_schedule_is_asked_for_every_step_once_and_in_order():
    start, batch = problem()
    asked = []
    optimizer = training.SGD(lambda step: asked.append(step) or 0.1)
    run = train(start, batch, optimizer, steps=5)
    assert asked == list(range(5))
    train(run, batch, optimizer, steps=8, log_at=[8])
    assert asked == list(range(8))


@pytest.mark.parametrize("make", [training.SGD, training.Adam])
@pytest.mark.parametrize("shape", [(), (1,), (2,), (4,), (3, 1)])
def test_step_sizes_of_another_shape_are_refused(make, shape):
    start, batch = problem()
    for size in (torch.full(shape, 0.1), lambda step: torch.full(shape, 0.1)):
        with pytest.raises(ValueError, match="lr must"):
            train(start, batch, make(size))


def test_rates_of_parameters_that_are_not_there_are_refused():
    start, batch = problem()
    with pytest.raises(ValueError, match="nothing"):
        train(start, batch, training.SGD(0.1, rates={"nothing": 2.0}), steps=1)


def test_rates_scale_the_steps_of_the_parameters_they_name():
    start, batch = problem()
    gradient = regression(start, *batch)[1]
    run = train(start, batch, training.SGD(SIZES, rates={"w": 2.0, "b": 0.0}), steps=1, log_at=[1])
    assert torch.allclose(run.params["w"], start["w"] - 2 * SIZES[:, None] * gradient["w"], atol=1e-14, rtol=0)
    assert torch.equal(run.params["b"], start["b"])
    assert torch.equal(run.log["time"][-1], SIZES)


PYTORCH = {
    "plain": (training.SGD, torch.optim.SGD, {}),
    "momentum": (training.SGD, torch.optim.SGD, {"momentum": 0.9}),
    "decay": (training.SGD, torch.optim.SGD, {"weight_decay": 0.1}),
    "both": (training.SGD, torch.optim.SGD, {"momentum": 0.6, "weight_decay": 0.02}),
    "adam": (training.Adam, torch.optim.Adam, {}),
    "betas": (training.Adam, torch.optim.Adam, {"betas": (0.8, 0.99), "eps": 1e-3}),
    "adam, decay": (training.Adam, torch.optim.Adam, {"weight_decay": 0.2}),
    "adamw": (training.AdamW, torch.optim.AdamW, {}),
    "adamw, decay": (training.AdamW, torch.optim.AdamW, {"weight_decay": 0.2}),
}


@pytest.mark.parametrize("name", PYTORCH)
@pytest.mark.parametrize("own_sizes", [True, False])
def test_the_optimizers_are_pytorchs_over_a_hundred_steps(name, own_sizes):
    kind, theirs, options = PYTORCH[name]
    start, (x, y) = problem()
    sizes = 0.1 * SIZES if own_sizes else torch.full_like(SIZES, 0.05)
    rates = {"b": 0.5} if kind is training.SGD else {}
    ours = kind(sizes if own_sizes else 0.05, **options, **({"rates": rates} if rates else {}))
    run = train(start, (x, y), ours, steps=100)
    for r, size in enumerate(sizes.tolist()):
        leaves = {k: p[r].clone().requires_grad_() for k, p in start.items()}
        optimizer = theirs([{"params": [p], "lr": size * rates.get(k, 1)} for k, p in leaves.items()], **options)
        for _ in range(100):
            optimizer.zero_grad()
            F.softplus(-y[r] * (x[r] @ leaves["w"] + leaves["b"])).mean().backward()
            optimizer.step()
        assert all(torch.allclose(run.params[k][r], leaves[k], atol=1e-10, rtol=0) for k in leaves)
        assert (run.params["w"][r] - start["w"][r]).abs().max() > 0.01


@pytest.mark.parametrize("name", PYTORCH)
def test_the_layout_of_a_parameter_does_not_change_its_steps(name):
    kind, _, options = PYTORCH[name]
    start, aim = (torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))

    def squares(params):
        gap = params["w"] - aim
        return gap.square().sum((1, 2, 3)), {"w": 2 * gap}

    def after(w):
        return training.fit(squares, {"w": w}, (), steps=20, optimizer=kind(0.01, **options)).params["w"]

    reordered = start.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0)
    for other in (reordered, start.transpose(1, 2).contiguous().transpose(1, 2)):
        assert not other.is_contiguous()
        assert torch.allclose(after(other), after(start), atol=1e-6, rtol=0)


BAD = [{"lr": -0.1}, {"weight_decay": -0.1}]
BAD_SGD, BAD_ADAM = (
    [*BAD, {"momentum": -0.5}],
    [*BAD, {"lr": math.nan}, {"eps": -1e-8}, {"betas": 0.9}, {"betas": (1.0, 0.9)}, {"betas": (0.9, -0.1)}],
)


@pytest.mark.parametrize(
    "kind, options",
    [
        *(("SGD", options) for options in BAD_SGD),
        *((name, options) for name in ("Adam", "AdamW") for options in BAD_ADAM),
        ("FlowGD", {"relative": -0.1}),
    ],
)
def test_what_pytorch_refuses_is_refused_in_one_line(kind, options):
    if kind != "FlowGD":
        with pytest.raises((ValueError, TypeError)):
            getattr(torch.optim, kind)([torch.zeros(1)], **options)
    with pytest.raises(ValueError, match=f"^{next(iter(options))} must be .*, got [^\n]*$"):
        getattr(training, kind)(**options)


def test_parameters_in_place_of_a_step_size_are_refused():
    with pytest.raises(TypeError, match=r"^lr must be a number, .*, got generator; the parameters are an argument of fit$"):
        training.SGD(nn.Linear(2, 1).parameters())


def test_negative_step_sizes_of_replicas_are_refused():
    with pytest.raises(ValueError, match=r"lr must be non-negative, got a minimum of -0\.5"):
        training.SGD(torch.tensor([0.5, -0.5]))


# --- replicas that stop ---


def stops(log, threshold):
    """Row of the log in which each replica falls below the threshold; one past the end where it does not."""
    below = torch.cat([log["loss"] < threshold, torch.ones(1, log["loss"].shape[1], dtype=torch.bool)])
    return below.int().argmax(0)


@each_optimizer
@each_batch
def test_a_stopped_replica_keeps_what_it_had_and_the_others_do_not_notice(optimizer, batches):
    start, _ = problem()
    free = train(start, batches(), optimizer)
    # Two replicas stop, one after the other; the third goes on to the end.
    lowest = free.log["loss"].amin(0).sort().values
    threshold = (lowest[1:].mean()).item()
    rows = stops(free.log, threshold)
    assert sorted(rows.tolist())[-1] == len(free.steps) and rows.unique().numel() == 3
    run = train(start, batches(), optimizer, until=lambda p, loss: loss < threshold)
    assert run.running.tolist() == (rows == len(free.steps)).tolist()
    assert run.steps.tolist() == free.steps.tolist()
    for r, row in enumerate(rows.tolist()):
        for k in FIELDS:
            assert torch.allclose(run.log[k][: row + 1, r], free.log[k][: row + 1, r], atol=1e-12, rtol=0)
            assert (run.log[k][row:, r] == run.log[k][row : row + 1, r]).all()
        if row < len(free.steps):
            assert torch.equal(run.params["w"][r], run.log["w"][row, r])
            assert torch.equal(run.params["b"][r, 0], run.log["b"][row, r])
        else:
            assert all(torch.allclose(run.params[k][r], free.params[k][r], atol=1e-12, rtol=0) for k in start)


def test_stopped_replicas_are_not_computed_and_the_run_ends_with_the_last():
    start, batch = problem()
    sizes, looks = [], []

    def counted(params, *batch):
        sizes.append(len(params["w"]))
        assert all(len(part) == sizes[-1] for part in batch)
        return regression(params, *batch)

    def until(params, losses):
        looks.append(losses.clone())
        assert len(params["w"]) == len(losses) == 3
        return torch.tensor([len(looks) >= 3, True, len(looks) >= 4])

    how = {"steps": 50, "optimizer": training.SGD(SIZES, momentum=0.5), "log_at": [0, 2, 3, 6, 20, 50], "until": until}
    run = training.fit(counted, start, batch, **how)
    assert sizes == [3, 2, 2, 2, 1, 1, 1]
    assert run.steps.tolist() == [0, 2, 3, 6] and len(looks) == 4
    assert not run.running.any()
    assert all(torch.equal(row, seen) for row, seen in zip(run.log["loss"], looks))
    assert torch.equal(run.params["w"][1], start["w"][1])
    with_later = training.fit(counted, run, batch, **{**how, "steps": 80, "log_at": [50, 80]})
    assert len(sizes) == 7 and with_later.steps.tolist() == [0, 2, 3, 6]
    assert torch.equal(with_later.params["w"], run.params["w"])


def test_who_stops_at_the_last_step_has_taken_them_all():
    start, batch = problem()
    free = train(start, batch, training.SGD(0.5), steps=6)
    run = train(start, batch, training.SGD(0.5), steps=6, log_at=[6], until=lambda p, loss: loss < math.inf)
    assert not run.running.any() and run.step == 6
    assert torch.equal(run.params["w"], free.params["w"])


# --- batch normalisation ---


def normalised(replicas=3):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        nets = [nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 2)).double() for _ in range(replicas)]
    x, y = normal(replicas, 9, 10, 4), torch.randint(2, (replicas, 9, 10), generator=seeded(1))  # (replica, step, n, ...)
    return nets, training.ModuleObjective(nets[0], losses.cross_entropy), lambda step: (x[:, step], y[:, step])


MEAN, COUNT = "1.running_mean", "1.num_batches_tracked"
BUFFERS = {"mean": lambda p: p[MEAN], "count": lambda p: p[COUNT]}


HEAVY = training.SGD(SIZES, momentum=0.8, weight_decay=0.01)


def train_normalised(params, steps=8, log_at=range(9), optimizer=HEAVY, **how):
    _, objective, batches = normalised()
    return training.fit(objective, params, batches, steps=steps, optimizer=optimizer, probes=BUFFERS, log_at=log_at, **how)


def test_a_stop_leaves_the_running_statistics_of_the_others_alone():
    start = training.stack(normalised()[0])
    free = train_normalised(start)
    run = train_normalised(
        start, log_at=[0, 3, 5, 8], until=lambda p, loss: (p[COUNT] >= 3) & torch.tensor([False, True, False])
    )
    assert run.running.tolist() == [True, False, True]
    for k, p in run.params.items():
        torch.testing.assert_close(p[[0, 2]], free.params[k][[0, 2]])
    assert run.params[COUNT].tolist() == [8, 3, 8]
    assert torch.equal(run.params[MEAN][1], free.log["mean"][3, 1])
    assert torch.equal(run.log["mean"][:, 1], run.log["mean"][[0, 1, 1, 1], 1])


def test_probes_see_the_buffers_before_the_step():
    start = training.stack(normalised()[0])
    run = train_normalised(start)
    assert run.log["count"].tolist() == [[step] * 3 for step in range(9)]
    assert torch.equal(run.log["mean"][0], start[MEAN])
    for step in (0, 1, 4):
        assert torch.equal(train_normalised(start, steps=step, log_at=[step]).params[MEAN], run.log["mean"][step])


@pytest.mark.parametrize("seam", [1, 4, 8])
def test_a_network_with_buffers_goes_on_as_if_it_had_not_stopped(seam):
    start = training.stack(normalised()[0])
    half = train_normalised(start, steps=seam, log_at=range(seam + 1))
    same(train_normalised(half, log_at=range(seam, 9)), train_normalised(start))


# --- going on ---


@each_optimizer
@each_batch
@pytest.mark.parametrize("stop", [False, True], ids=["all", "some"])
def test_two_halves_are_the_whole(optimizer, batches, stop, tmp_path):
    start, _ = problem()
    how = {"until": lambda p, loss: (loss < 0.6) & torch.tensor([True, False, True])} if stop else {}
    whole = train(start, batches(), optimizer, log_at=range(0, 25, 2), **how)
    shared = batches()
    half = train(start, shared, optimizer, steps=11, log_at=range(0, 11, 2), **how)
    assert half.step == 11 and (not stop or 0 < half.running.sum() < 3)
    before = copy.deepcopy(half)
    same(train(half, shared, optimizer, log_at=range(12, 25, 2), **how), whole)
    same(half, before)
    assert all(torch.equal(v, before.state[k]) if torch.is_tensor(v) else v == before.state[k] for k, v in half.state.items())
    half.save(tmp_path / "half")
    loaded = training.Run.load(tmp_path / "half")
    same(loaded, half)
    assert [file.name for file in tmp_path.iterdir()] == ["half"]
    # New batches from the same seeds: those behind the run are drawn and thrown away.
    same(train(loaded, batches(), optimizer, log_at=range(12, 25, 2), **how), whole)


def test_a_saved_run_that_asks_for_a_command_runs_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"params": Command()}, tmp_path / "run")
    with pytest.raises(pickle.UnpicklingError):
        training.Run.load(tmp_path / "run")
    assert not (tmp_path / "executed").exists()


@each_optimizer
def test_many_pieces_are_the_whole_wherever_the_seams_are_logged(optimizer):
    start, _ = problem()
    whole = train(start, fresh(), optimizer, log_at=[0, 5, 7, 24])
    batches, run = fresh(), start
    for steps, log_at in ((5, [0, 5]), (5, [5]), (7, [7]), (24, [24])):  # the second piece has nothing to do
        run = train(run, batches, optimizer, steps=steps, log_at=log_at)
    same(run, whole)
    run = train(start, fresh(), optimizer, steps=5, log_at=[0])
    same(train(run, fresh(), optimizer, log_at=[5, 7, 24]), whole)


def halving(params):
    return params["w"].square() / 2, {"w": params["w"]}


SIZE_OF_A_RUN = {
    "a number": (0.5, 0.0),
    "tensors": (torch.tensor([0.5, 0.5]), torch.tensor([0.0, 0.0])),
    "a tensor, then a number": (torch.tensor([0.5, 0.5]), 0.0),
    "a number, then a tensor": (0.5, torch.tensor([0.0, 0.0])),
    "a tensor, then a schedule": (torch.tensor([0.5, 0.5]), lambda step: torch.zeros(2)),
    "a schedule, then a tensor": (lambda step: 0.5, torch.tensor([0.0, 0.0])),
}


@pytest.mark.parametrize(("first", "second"), SIZE_OF_A_RUN.values(), ids=SIZE_OF_A_RUN)
@pytest.mark.parametrize("make", [training.SGD, training.Adam])
def test_a_resumed_run_takes_the_step_size_that_is_given_now(make, first, second):
    run = training.fit(halving, {"w": torch.ones(2)}, (), steps=1, optimizer=make(first))
    assert torch.allclose(run.params["w"], torch.tensor(0.5))
    again = training.fit(halving, run, (), steps=2, optimizer=make(second))
    assert torch.equal(again.params["w"], run.params["w"]) and again.log["time"][-1].tolist() == [0.5, 0.5]


def test_a_new_step_size_is_that_of_the_replicas_that_still_run():
    how = {"optimizer": training.SGD(SIZES[:2]), "until": lambda params, losses: losses > 1.0}
    run = training.fit(halving, {"w": torch.tensor([3.0, 1.0])}, (), steps=2, **how)
    assert run.running.tolist() == [False, True]
    for lr in (torch.tensor([0.1, 1.0]), lambda step: torch.tensor([0.1, 1.0])):
        assert training.fit(halving, run, (), steps=3, optimizer=training.SGD(lr)).params["w"].tolist() == [3.0, 0.0]
    with pytest.raises(ValueError, match=r"lr must be a number or have shape \(2,\), got \(1,\)"):
        training.fit(halving, run, (), steps=3, optimizer=training.SGD(torch.ones(1)))


@pytest.mark.parametrize(
    ("first", "second", "kinds"),
    [
        (training.FlowGD(), training.SGD(), "FlowGD, got SGD"),
        (training.SGD(), training.Adam(), "SGD, got Adam"),
        (training.AdamW(), training.SGD(momentum=0.9), "Adam, got SGD"),
        (training.Adam(), training.FlowGD(), "Adam, got FlowGD"),
    ],
)
def test_a_run_does_not_go_on_with_an_optimizer_of_another_kind(first, second, kinds, tmp_path):
    training.fit(lambda params: (params["w"][:, 0], {"w": params["w"]}), {"w": torch.ones(2, 1)}, (), steps=1,
                 optimizer=first).save(tmp_path / "run")  # fmt: skip
    with pytest.raises(ValueError, match=f"expected the kind of optimizer of the resumed run, {kinds}"):
        training.fit(halving, training.Run.load(tmp_path / "run"), (), steps=2, optimizer=second)


def test_a_run_does_not_go_on_with_other_probes_or_backwards():
    start, batch = problem()
    run = train(start, batch, training.SGD(0.1), steps=6)
    for probes in (None, {"w": LOOKS["w"]}, {**LOOKS, "more": LOOKS["b"]}):
        with pytest.raises(ValueError, match="probes"):
            train(run, batch, training.SGD(0.1), probes=probes, log_at=[24])
    with pytest.raises(ValueError, match="at least 6, the number already taken, got 5"):
        train(run, batch, training.SGD(0.1), steps=5, log_at=[6])
    with pytest.raises(ValueError, match="from 6 to 24"):
        train(run, batch, training.SGD(0.1), log_at=[5, 24])


# --- fresh samples ---

PATCHES, POINTS = WORLD.sample, SimpleMultiView(3).sample
each_draw = pytest.mark.parametrize("draw", [PATCHES, POINTS, points], ids=["patches", "points", "tuple"])


def equal(one, other):
    return len(one) == len(other) and all(torch.equal(a, b) for a, b in zip(one, other))


@each_draw
@pytest.mark.parametrize("block", [1, 3, 16])
def test_a_replica_sees_the_fresh_samples_of_a_run_of_its_own(draw, block):
    together = training.Fresh(draw, 5, training.generators(8, 3), block)
    alone = [training.Fresh(draw, 5, training.generators(8 + r, 1), block) for r in range(3)]
    seen = []
    for step in (0, 1, 2, 3, 7):
        batch = together(step)
        assert type(batch) is tuple and batch[0].shape[:2] == (3, 5)
        assert equal(batch, together(step))
        for r in range(3):
            assert equal([part[r] for part in batch], [part[0] for part in alone[r](step)])
            seen.append(batch[0][r])
    assert not any(torch.equal(a, b) for i, a in enumerate(seen) for b in seen[:i])


@each_draw
def test_fresh_samples_are_the_draws_of_the_generator_in_blocks(draw):
    batches = training.Fresh(draw, 5, [seeded(3)], block=4)
    generator = seeded(3)
    for block in range(2):
        whole = draw(20, generator)
        for offset in range(4):
            batch, n = batches(4 * block + offset), slice(5 * offset, 5 * offset + 5)
            assert torch.equal(batch[0][0], whole[0][n]) and torch.equal(batch[1][0], whole[1][n])
            if isinstance(whole, Patches):
                assert torch.equal(batch[2][0], whole.multiplicity)


def test_skipped_fresh_samples_are_drawn_all_the_same():
    batches, late = fresh(), fresh()
    steps = [batches(step) for step in range(14)]
    assert equal(late(13), steps[13])


def test_fresh_samples_do_not_go_back():
    batches = fresh()
    batches(3), batches(4)
    with pytest.raises(ValueError, match="expected step 4 or later, got 3"):
        batches(3)


@pytest.mark.parametrize(("n", "block"), [(0, 4), (-1, 4), (5, 0), (5, -2)])
def test_fresh_samples_come_in_positive_numbers(n, block):
    with pytest.raises(ValueError, match="at least 1"):
        training.Fresh(points, n, training.generators(0, 1), block)


def test_fresh_patches_train_a_stack():
    def run(seed, replicas):
        batches = training.Fresh(WORLD.sample, 9, training.generators(seed, replicas), 3)
        weight = torch.stack([0.1 * normal(3, 4, WORLD.dim, seed=seed + r) for r in range(replicas)])
        optimizer = training.SGD(0.3)
        return training.fit(PatchObjective(4, 0.1, torch.float64), {"weight": weight}, batches, steps=8, optimizer=optimizer)

    stack = run(3, 3)
    for r in range(3):
        assert torch.allclose(stack.params["weight"][r], run(3 + r, 1).params["weight"][0], atol=1e-11, rtol=0)
    assert stack.log["loss"].unique().numel() == 6


# --- looking changes nothing ---


@each_optimizer
@each_batch
def test_looking_at_every_step_is_looking_once(optimizer, batches):
    start, _ = problem()
    often = train(start, batches(), optimizer, log_at=range(25), until=lambda p, loss: loss < -1)
    for log_at in ([0], [24], [3, 17]):
        rare = train(start, batches(), optimizer, log_at=log_at)
        assert all(torch.equal(p, often.params[k]) for k, p in rare.params.items())
        assert all(torch.equal(rows, often.log[k][log_at]) for k, rows in rare.log.items())


@pytest.mark.parametrize("optimizer", [training.SGD(SIZES, momentum=0.8), OPTIMIZERS["adam"]], ids=["momentum", "adam"])
def test_looking_at_a_network_with_buffers_changes_nothing(optimizer):
    start = training.stack(normalised()[0])
    often, rare = (train_normalised(start, log_at=log_at, optimizer=optimizer) for log_at in (range(9), [0]))
    assert all(torch.equal(p, often.params[k]) for k, p in rare.params.items())
    assert (often.params["0.weight"] - start["0.weight"]).abs().max() > 0.05


# --- batches given again, scalars, modes ---


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_resumed_run_has_the_drawn_batches_of_an_uninterrupted_one(device):
    def batches():
        generator = seeded(5)
        drawn = lambda step: (torch.randn(3, 12, 4, generator=generator, dtype=torch.float64), signs)  # noqa: E731
        return training.in_blocks(drawn, device)

    start, (_, signs) = problem()
    with card.card() if device == "cuda" else contextlib.nullcontext():
        start = training.to_device(start, device)
        once, part = (train(start, batches(), training.SGD(0.3), steps=steps, probes={}, log_at=[steps]) for steps in (20, 7))
        resumed = train(part, batches(), training.SGD(0.3), steps=20, probes={}, log_at=[20])
        assert all(torch.equal(once.params[k].cpu(), resumed.params[k].cpu()) for k in start)


def test_a_step_may_be_repeated_and_an_earlier_one_is_refused():
    generator = seeded()
    batches = training.in_blocks(lambda step: (torch.rand(2, generator=generator),), "cpu")
    first = batches(3)
    assert torch.equal(first[0], batches(3)[0]) and not torch.equal(first[0], batches(4)[0])
    with pytest.raises(ValueError, match="expected step 4 or later, got 3"):
        batches(3)


@pytest.mark.parametrize("normalise", [False, True], ids=["vectorised", "in turn"])
def test_scalars_of_a_batch_are_shared_by_the_replicas(normalise):
    nets = [nn.Sequential(nn.Linear(4, 3), *[nn.BatchNorm1d(3)] * normalise).double() for _ in range(3)]
    x, y = normal(3, 12, 4), torch.randint(3, (3, 12), generator=seeded())
    objective = training.ModuleObjective(nets[0], losses.mixup)
    for lam in (0.5, torch.tensor(0.5)):
        values, _ = objective(training.stack(nets), x, y, x.flip(1), y.flip(1), lam)
        for r, net in enumerate(nets):
            alone = losses.mixup(net, x[r], y[r], x[r].flip(0), y[r].flip(0), 0.5)
            assert values[r].item() == pytest.approx(alone.item())


def test_dropout_differs_between_replicas():
    net = nn.Sequential(nn.Linear(4, 50), nn.Dropout(0.5), nn.Linear(50, 3)).double()
    x, y = normal(1, 12, 4).expand(3, -1, -1), torch.zeros(3, 12, dtype=torch.long)
    values, _ = training.ModuleObjective(net, losses.cross_entropy)(training.stack([net] * 3), x, y)
    assert values.unique().numel() == 3


def test_predictions_leave_the_modes_of_a_module():
    net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout(0.5)).double()
    net[1].eval()
    for x in (torch.ones(1, 5, 4).double(), torch.ones(1, 5, 7).double()):
        with pytest.raises(RuntimeError) if x.shape[-1] == 7 else contextlib.nullcontext():
            training.predict(net, training.stack([net]), x)
        assert [part.training for part in net.modules()] == [True, True, False, True]


@pytest.mark.parametrize("stops, step", [([0, 0, 0], 0), ([3, 3, 3], 3), ([0, 3, 6], 6), ([0, 3, 99], 9)])
def test_the_step_of_a_run_is_the_one_at_which_its_last_replica_stopped(stops, step):
    start, batch = problem()
    begun = start["w"].sum(1)
    looks = iter([0, 3, 6, 9])
    run = train(
        start, batch, training.SGD(0.1), steps=9, log_at=[0, 3, 6, 9], until=lambda p, loss: torch.tensor(stops) <= next(looks)
    )
    assert run.step == step and run.running.tolist() == [stop == 99 for stop in stops]
    assert (run.params["w"].sum(1) == begun).tolist() == [stop == 0 for stop in stops]
