"""Contrastive losses and objectives, and the arms of chapter 13: what is trained on what, from which start."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from mvnb import training
from mvnb.papers.contrastive_tradeoff import data, model, theory
from mvnb.papers.contrastive_tradeoff import training as contrastive


def gen(seed=0):
    return torch.Generator().manual_seed(seed)


def directions(*shape, seed=0):
    return F.normalize(torch.randn(*shape, generator=gen(seed), dtype=torch.float64), dim=-1)


# --- Losses ---


def test_losses_of_equal_embeddings():
    one = directions(1, 1, 4).expand(2, 5, 4)
    assert torch.allclose(contrastive.nt_xent(one, one, 0.3), torch.full((2,), math.log(9.0), dtype=torch.float64))
    assert torch.allclose(contrastive._info_nce(one, one, one, 0.1), torch.full((2,), math.log(6.0), dtype=torch.float64))


def test_nt_xent_is_the_cross_entropy_among_the_others():
    first, second = directions(6, 3), directions(6, 3, seed=1)
    z = torch.cat([first, second])
    logits = (z @ z.T / 0.2).fill_diagonal_(-math.inf)
    expected = F.cross_entropy(logits, torch.arange(12).roll(6))
    assert torch.allclose(contrastive.nt_xent(first, second, 0.2), expected)


def test_nt_xent_at_a_low_temperature_is_that_of_double_precision():
    first, second = directions(32, 16), directions(32, 16, seed=1)
    logits = (torch.cat([first, second]) @ torch.cat([first, second]).T / 0.005).fill_diagonal_(-math.inf)
    exact = F.cross_entropy(logits, torch.arange(64).roll(32))
    single = contrastive.nt_xent(first.float(), second.float(), 0.005)
    assert torch.allclose(single.double(), exact, rtol=1e-5)


def test_info_nce_is_the_cross_entropy_among_key_and_negatives():
    q, k, negatives = directions(6, 3), directions(6, 3, seed=1), directions(9, 3, seed=2)
    logits = torch.cat([(q * k).sum(1, keepdim=True), q @ negatives.T], 1) / 0.1
    expected = F.cross_entropy(logits, torch.zeros(6, dtype=torch.long))
    assert torch.allclose(contrastive._info_nce(q, k, negatives, 0.1), expected)


def test_nnclr_is_nt_xent_between_neighbours_and_predictions():
    """As in the authors' code: the cross-entropy among all other neighbours and predictions, in both directions."""
    objective, params = begin("nnclr", temperature=0.5)
    first, second = views()
    (z1, p1), (z2, p2) = (objective._embed(params, view) for view in (first, second))
    queue, expected = params["queue"].clone(), 0.0
    for z, p in ((z1, p2), (z2, p1)):
        near = torch.stack([q[(a @ q.T).argmax(1)] for a, q in zip(z, queue)])
        both = torch.cat([near, p], 1)
        logits = (both @ both.mT / 0.5).masked_fill(torch.eye(16, dtype=torch.bool), -math.inf)
        expected = expected + torch.stack([F.cross_entropy(row, torch.arange(16).roll(8)) for row in logits]) / 2
    found = objective.losses(params, first, second)
    assert torch.allclose(found, expected, atol=1e-5)
    assert torch.allclose(params["queue"][:, :8], z2) and torch.equal(params["queue"][:, 8:], queue[:, :8])


def test_nearest():
    support = directions(2, 7, 3)
    assert torch.equal(contrastive._nearest(support[:, 2:4], support), support[:, 2:4])


# --- Objectives ---


def networks(method, replicas=2, encoder=None):
    project, predict = {"moco": ((), ()), "simclr": ((), ()), "simsiam": ((6, 5), (4, 5)), "nnclr": ((6, 5), (6, 5))}[method]

    def one(seed):
        torch.manual_seed(seed)
        inner = encoder() if encoder else nn.Sequential(nn.Flatten(), nn.Linear(16, 7), nn.ReLU(), nn.Linear(7, 5))
        return model.ContrastiveNet(inner, 5, project, predict)

    return [one(s) for s in range(replicas)]


def views(replicas=2, n=8, seed=3):
    return [torch.randn(replicas, n, 1, 4, 4, generator=gen(seed + i)) for i in range(2)]


def begin(method, encoder=None, **settings):
    nets = networks(method, encoder=encoder)
    objective = contrastive.ContrastiveObjective(nets[0], method, **{"queue": 16, **settings})
    return objective, objective.start(nets, training.generators(0, 2))


@pytest.mark.parametrize("method", model.HEADS)
def test_replicas_are_runs_of_their_own_and_learn(method):
    objective, params = begin(method)
    batch = views()
    steps = {"steps": 10, "optimizer": training.SGD(0.05)}
    both = training.fit(objective, params, tuple(batch), **steps)
    alone = training.fit(objective, {k: v[1:] for k, v in params.items()}, tuple(b[1:] for b in batch), **steps)
    for k, v in alone.params.items():
        assert torch.allclose(both.params[k][1:], v, atol=2e-4), k
    if method != "moco":  # whose queue holds the keys of this one batch
        assert (both.log["loss"][-1] < both.log["loss"][0]).all()


def test_the_temperature_is_that_of_the_loss():
    batch = views()
    found = {method: [] for method in ("simclr", "moco", "nnclr")}
    for method, losses in found.items():
        for temperature in (0.2, 1.0):
            objective, params = begin(method, temperature=temperature)
            z1, z2 = (objective._embed(params, view)[0] for view in batch)
            losses.append(objective.losses(params, *batch))
            if method == "simclr":
                assert torch.allclose(losses[-1], contrastive.nt_xent(z1, z2, temperature))
    assert all((hot - cold).abs().min() > 0.01 for hot, cold in found.values())


@pytest.mark.parametrize("method", model.HEADS)
def test_convolutions_run_too(method):
    objective, params = begin(method, lambda: nn.Sequential(nn.Conv2d(1, 5, 3), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten()))
    loss, grads = objective(params, *views())
    assert loss.isfinite().all() and all(g.isfinite().all() for g in grads.values())


def test_moco_moves_its_copy_and_its_queue():
    objective, params = begin("moco", momentum=0.9)
    name = "encoder.1.weight"
    params[name] += 1.0
    before, query, old = params["key." + name].clone(), params[name].clone(), params["queue"].clone()
    first, second = views()
    objective(params, first, second)
    assert torch.allclose(params["key." + name], 0.9 * before + 0.1 * query)
    assert torch.equal(params["queue"][:, 16:], old[:, :0]) and params["queue"].shape == old.shape
    slow = {k: params["key." + k] for k in objective.net.state_dict()}
    keys = torch.cat([objective._embed(slow, view)[0] for view in (first, second)], 1)
    assert torch.allclose(params["queue"], keys, atol=1e-6)  # 16 keys fill it


def test_moco_is_info_nce_with_keys_of_the_slow_copy_and_negatives_from_earlier_batches():
    objective, params = begin("moco", temperature=0.5, momentum=0.9)
    params["encoder.1.weight"] += 1.0  # so that the slow copy differs
    first, second = views()
    slow = {k: params["key." + k].lerp(params[k], 0.1) for k in objective.net.state_dict()}
    (z1, z2), (k1, k2) = ([objective._embed(one, view)[0] for view in (first, second)] for one in (params, slow))
    earlier, expected = params["queue"].clone(), 0.0
    for query, key in ((z1, k2), (z2, k1)):
        logits = torch.cat([(query * key).sum(-1, keepdim=True), query @ earlier.mT], -1) / 0.5
        expected = expected + torch.stack([F.cross_entropy(row, torch.zeros(8, dtype=torch.long)) for row in logits])
    assert torch.allclose(objective.losses(params, first, second), expected, atol=1e-5)


def test_the_queue_is_first_in_first_out():
    objective, params = begin("moco", queue=20)
    old = params["queue"].clone()
    objective(params, *views())
    assert torch.equal(params["queue"][:, 16:], old[:, :4])


def test_simsiam_stops_the_gradient():
    """With the targets frozen by hand the gradient is the same."""
    objective, params = begin("simsiam")
    batch = views()
    _, grads = objective(params, *batch)
    with torch.no_grad():
        z1, z2 = (objective._embed(params, view)[0] for view in batch)
    leaves = {k: v.detach().clone().requires_grad_() for k, v in params.items()}
    p1, p2 = (objective._embed(leaves, view)[1] for view in batch)
    loss = -((p1 * z2).sum(-1) + (p2 * z1).sum(-1)).mean(1) / 2
    own = torch.autograd.grad(loss.sum(), leaves["encoder.1.weight"])[0]
    assert torch.allclose(grads["encoder.1.weight"], own, atol=1e-6)


def with_head(params, classes=3):
    head = {"head.weight": torch.zeros(2, classes, 5), "head.bias": torch.zeros(2, classes)}
    return params | head


def test_regularisation_without_weight_is_fine_tuning():
    objective, params = begin("simclr")
    batch = (*views(), torch.randint(3, (2, 8), generator=gen(9)))
    steps = {"steps": 10, "optimizer": training.SGD(0.1)}
    none = training.fit(contrastive.RegularisedObjective(objective, 0.0), with_head(params), batch, **steps)
    tiny = training.fit(contrastive.RegularisedObjective(objective, 1e-9), with_head(params), batch, **steps)
    much = training.fit(contrastive.RegularisedObjective(objective, 1.0), with_head(params), batch, **steps)
    for k, v in none.params.items():
        assert torch.allclose(v, tiny.params[k], atol=1e-6)
    assert not torch.allclose(none.params["encoder.1.weight"], much.params["encoder.1.weight"], atol=1e-4)
    loss, _ = contrastive.RegularisedObjective(objective, 2.0)(with_head(params), *batch)
    own, _ = objective(params, *batch[:2])
    assert torch.allclose(loss, math.log(3) + 2 * own)


def test_wrong_settings():
    net = networks("moco")[0]
    for wrong in ({"method": "byol"}, {"temperature": 0.0}, {"momentum": 1.0}, {"queue": 0}):
        with pytest.raises(ValueError):
            contrastive.ContrastiveObjective(net, **{"method": "moco", **wrong})
    with pytest.raises(ValueError):
        contrastive.RegularisedObjective(contrastive.ContrastiveObjective(net, "moco"), -1.0)


def test_gradients_of_the_linear_model_are_those_of_autograd():
    x, plus = (torch.randn(2, 9, 4, generator=gen(seed), dtype=torch.float64) for seed in (1, 2))
    for loss, name, rows in ((contrastive.pair_loss, "g", 4), (contrastive.factor_loss, "w", 6)):
        value = 0.3 * torch.randn(2, rows, 4, generator=gen(3), dtype=torch.float64)
        value = (value + value.mT if name == "g" else value).requires_grad_()
        gram = value if name == "g" else value.mT @ value
        expected = F.softplus(-((x @ gram) * plus).sum(-1)).mean(1)
        (slope,) = torch.autograd.grad(expected.sum(), value)
        slope = (slope + slope.mT) / 2 if name == "g" else slope
        found, grads = loss({name: value.detach()}, x, plus)
        assert torch.allclose(found, expected) and torch.allclose(grads[name], slope, rtol=0, atol=1e-12)


# --- Arms ---

GREYS = torch.tensor([0.01, 0.04, 0.16, 0.64])  # change of brightness by less than a factor of 2 in a view
RUNS = 2
LINEAR = {"steps": 20, "batch": 8, "replicas": 2, "seed": 0}
SIMCLR = {"batch": 16, "temperature": 0.2}
COLOUR = {"method": "simclr", "passes": 2, "batch": 8, "view": 6, "temperature": 0.3, "step_size": 0.002}
COLOUR |= {"weight_decay": 1e-4, "queue": 2}


def grey_sets():
    """Sets of pictures of one grey, which is the label."""
    sets = {}
    for i, name in enumerate(data.SETS):
        y = torch.randint(4, (120,), generator=gen(i))
        sets[name] = GREYS[y][:, None, None, None].expand(-1, 1, 6, 6).clone(), y
    return data.SmallSets(sets, 20)


def labels_of(pictures):
    """Return the labels of views of :func:`grey_sets`."""
    return (pictures.mean((-3, -2, -1)).log()[..., None] - GREYS.log()).abs().argmin(-1)


def networks_of(encoder=None, seed=0):
    encoder = encoder or model.make_encoder("mlp", 6, 16, 8)
    return model.Networks(encoder, 8, RUNS, seed, torch.device("cpu"))


SETS, NETS, WORLD = grey_sets(), networks_of(), data.Mixture(2, 3, 2)
TWO_SETS = SETS.pool(data.SETS[:2])
ROWS = SETS.labelled(12, NETS.streams(20))
PRETRAINED = contrastive.pretrain(NETS, SETS.pool(["relief"]), "simclr", passes=8, lr=0.01, **SIMCLR)
NOISE = torch.rand(40, 3, 8, 8, generator=gen(4))


def flat(values):
    """Return everything that an arm returned as one vector."""
    if callable(values):
        values = values(SETS.test[0])
    if isinstance(values, dict):
        values = torch.cat([v.flatten() for v in values.values()])
    return torch.as_tensor(values).flatten().double()


def pretrain(nets=NETS, pictures=TWO_SETS, method="simclr", passes=3, lr=0.01, **changes):
    return flat(contrastive.pretrain(nets, pictures, method, passes=passes, lr=lr, **SIMCLR | changes))


def further(nets=NETS, sets=SETS, start=PRETRAINED, steps=4, **changes):
    return flat(contrastive.pretrain_further(nets, sets, start, steps=steps, **SIMCLR | changes))


def fine_tune(nets=NETS, sets=SETS, start=PRETRAINED, rows=ROWS, weight=0.1, steps=8, **changes):
    return flat(contrastive.fine_tune(nets, sets, start, rows, weight=weight, steps=steps, **SIMCLR | changes))


def adapt(nets=NETS, sets=SETS, start=PRETRAINED, rows=ROWS, weight=1.0, steps=8, **changes):
    return flat(contrastive.adapt(nets, sets, start, rows, weight=weight, steps=steps, **SIMCLR | changes))


def linear(world=WORLD, shares=(0.5, 0.5), **changes):
    return flat(contrastive.pretrain_linear(world, list(shares), **LINEAR | changes))


def regularise(world=WORLD, radii=(0.1, 0.2), n_tasks=10, **changes):
    return flat(contrastive.regularise_linear(world, list(radii), n_tasks, **LINEAR | changes))


def colour(x=NOISE, widths=(4, 4, 4, 4), added=None, seed=0, **changes):
    net, sets = model.colour_network(list(widths), seed), [x] if added is None else [x, added]
    return flat(contrastive.pretrain_colour(net, sets, seed=seed, **COLOUR | changes))


def colour_by_moco(**changes):
    return colour(**{"method": "moco", "queue": 2} | changes)


OTHER_START = {k: v.roll(1, 0) for k, v in PRETRAINED.items()}
OTHER_LABELS = data.SmallSets({name: (x, (y + y.roll(1)) % 4) for name, (x, y) in SETS.sets.items()}, 20)
OTHER_PICTURES = data.SmallSets({name: (x.flip(0), y) for name, (x, y) in SETS.sets.items()}, 20)
TUNING = {
    "nets": networks_of(seed=1), "sets": OTHER_LABELS, "start": OTHER_START, "rows": ROWS[:, :6], "weight": 0.0, "steps": 5,
    "batch": 8, "temperature": 0.5, "lr": 0.001,
}  # fmt: skip
CHANGES = {
    pretrain: {
        "nets": networks_of(seed=1), "pictures": SETS.pool(data.SETS[:1]), "method": "simsiam", "passes": 2, "lr": 0.02,
        "batch": 8, "temperature": 0.5, "decay": 1.0,
    },
    further: {"nets": networks_of(seed=1), "sets": OTHER_PICTURES, "start": OTHER_START, "steps": 3, "lr": 0.001, "batch": 8,
              "temperature": 0.5},
    fine_tune: TUNING,
    adapt: TUNING | {"stored": 3},
    linear: {"world": data.Mixture(1, 2, 2), "shares": (0.2, 0.8), "steps": 10, "batch": 4, "seed": 1, "factor": True},
    regularise: {"world": data.Mixture(3, 2, 2), "radii": (0.1, 0.3), "n_tasks": 5, "steps": 3, "batch": 1, "seed": 1},
    colour: {"x": 1 - NOISE, "widths": (4, 4, 4, 5), "added": 1 - NOISE, "passes": 3, "seed": 1, "batch": 4, "view": 8,
             "temperature": 0.5, "step_size": 0.01, "weight_decay": 0.5, "method": "moco"},
    colour_by_moco: {"queue": 1, "temperature": 0.5},
}  # fmt: skip


@pytest.mark.parametrize(("arm", "name"), [(arm, name) for arm, changes in CHANGES.items() for name in changes])
def test_an_arm_ignores_no_argument(arm, name):
    one, again, other = arm(), arm(), arm(**{name: CHANGES[arm][name]})
    assert torch.allclose(one, again, rtol=0.01, atol=0.001)
    if len(one) == len(other):
        assert 1e-4 * one.norm() + 3 * (one - again).norm() < (one - other).norm()


@pytest.fixture
def descents(monkeypatch):
    """What the arms on pictures hand over to the optimiser, which then returns the start: objective, start, batches, ..."""
    calls = []
    monkeypatch.setattr(contrastive, "_descend", lambda *args, **_: calls.append(args) or SimpleNamespace(params=args[1]))
    return calls


def test_pretraining_starts_untrained_and_alike_on_every_union(descents):
    for union in (["handwriting"], data.SETS):
        contrastive.pretrain(NETS, SETS.pool(union), "simclr", passes=2, lr=0.01, decay=0.1, **SIMCLR)
    untrained = training.stack(NETS.untrained("simclr"))
    for (objective, start, batches, steps, lr, decay), pictures in zip(descents, (20, 80)):
        assert all(torch.equal(start[name], value) for name, value in untrained.items())
        assert objective.method == "simclr" and objective.temperature == 0.2 and (lr, decay) == (0.01, 0.1)
        assert steps == max(2, 2 * pictures // 16)
        first, second = batches(0)
        assert first.shape == (RUNS, 16, 1, 6, 6) and not torch.equal(first, second)
        assert torch.equal(labels_of(first), labels_of(second)) and not torch.equal(first[0], first[1])


def test_the_step_size_on_pictures_falls_to_zero_along_a_cosine(monkeypatch):
    seen = {}
    monkeypatch.setattr(contrastive, "fit", lambda *given, **how: seen.update(how) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        pretrain(lr=0.4, passes=8)  # of 40 pictures, in batches of 16
    rates = [seen["optimizer"].lr(step) for step in (0, 5, 10, 15, 20)]
    assert seen["steps"] == 20 and rates == pytest.approx([0.4, 0.2 + 0.1 * 2**0.5, 0.2, 0.2 - 0.1 * 2**0.5, 0])


def test_queues_have_eight_batches(descents):
    for method in ("moco", "nnclr"):
        start = contrastive.pretrain(NETS, TWO_SETS, method, passes=2, lr=0.01, **SIMCLR)
        assert start["queue"].shape[1] == descents[-1][0].queue == 128


def test_all_methods_start_from_the_same_encoders():
    stacks = [training.stack(NETS.untrained(method)) for method in model.HEADS]
    encoder = [name for name in stacks[0] if name.startswith("encoder.")]
    assert all(torch.equal(stacks[0][name], other[name]) for name in encoder for other in stacks)
    assert not torch.equal(*stacks[0][encoder[0]])  # runs differ


def test_features_are_those_in_front_of_the_projector_run_by_run():
    nets, x = NETS.untrained("simsiam"), SETS.test[0][:5]
    found = NETS.encode(training.stack(nets), x)
    with torch.no_grad():
        assert all(torch.allclose(row, net.encoder(x), atol=1e-6) for row, net in zip(found, nets))
        z, p = nets[0](x)
        expected = nets[0].projector(nets[0].encoder(x))
        assert torch.allclose(z, expected, atol=1e-5) and torch.allclose(p, nets[0].predictor(z), atol=1e-5)


def test_fine_tuning_starts_from_the_network_and_sees_two_views_with_their_labels(descents):
    contrastive.fine_tune(NETS, SETS, PRETRAINED, ROWS, weight=0.1, steps=8, **SIMCLR)
    contrastive.pretrain_further(NETS, SETS, PRETRAINED, steps=8, **SIMCLR)
    for _, start, *_ in descents:
        assert all(torch.equal(start[name], value) for name, value in PRETRAINED.items())
    objective, start, batches, *_ = descents[0]
    assert objective.weight == 0.1 and objective.contrastive.temperature == 0.2
    assert start["head.weight"].shape == (RUNS, 4, 8) and not start["head.weight"].any() and not start["head.bias"].any()
    first, second, y = batches(0)
    assert torch.equal(labels_of(first), y) and torch.equal(labels_of(second), y) and not torch.equal(first, second)
    known = SETS.known[1]
    shares = [known[rows].bincount(minlength=4) > 0 for rows in ROWS]
    assert all(share[labels].all() for share, labels in zip(shares, y))
    assert labels_of(descents[1][2](0)[0]).unique().tolist() == [0, 1, 2, 3]


def test_what_follows_pretraining_sees_only_pictures_with_labels(descents, monkeypatch):
    """Here pictures without labels are black and those for tests white; the others are grey."""
    seen, sizes = [], torch.tensor([SETS.own, len(SETS.known[1]), SETS.n_test])
    monkeypatch.setattr(data, "grey_view", lambda x, draws: seen.append(x) or x)
    x = torch.tensor([0.0, 0.5, 1.0]).repeat_interleave(sizes)[:, None, None, None].expand(-1, 1, 6, 6)
    sets = data.SmallSets({name: (x, y) for name, (_, y) in SETS.sets.items()}, SETS.own)
    contrastive.pretrain_further(NETS, sets, PRETRAINED, steps=8, **SIMCLR)
    contrastive.fine_tune(NETS, sets, PRETRAINED, ROWS, weight=0.1, steps=8, **SIMCLR)
    for _, _, batches, *_ in descents:
        batches(0)
    contrastive.adapt(NETS, sets, PRETRAINED, ROWS, weight=1.0, steps=8, **SIMCLR)  # makes its views at once
    assert len(seen) == 3 and all((pictures == 0.5).all() for pictures in seen)


def test_an_adapter_compares_two_stored_views_of_a_picture_with_its_label(descents, monkeypatch):
    """Features tell their run, view and picture: here they are numbered in this order, ten views of twelve pictures."""
    stored = torch.arange(RUNS * 120.0)
    monkeypatch.setattr(model, "encode", lambda *_: stored.view(RUNS, 120, 1))
    contrastive.adapt(NETS, SETS, PRETRAINED, ROWS, weight=1.0, steps=8, **SIMCLR)
    ((_, start, batches, *_),) = descents
    assert not torch.equal(*next(value for name, value in start.items() if name.startswith("encoder.")))  # runs differ
    first, second, y = batches(0)
    first, second = ((one[..., 0] * stored.std()).round().long() for one in (first, second))
    assert all((one // 120 == torch.arange(RUNS)[:, None]).all() for one in (first, second))
    assert torch.equal(first % 12, second % 12) and torch.equal(y, SETS.known[1][ROWS].gather(1, first % 12))
    assert (first != second).double().mean() > 0.7 and len(set((first % 120 // 12).flatten().tolist())) > 5


def test_fine_tuning_trains_the_encoder_and_an_adapter_leaves_it_alone(monkeypatch):
    trained, encoded, encode = [], [], model.encode
    monkeypatch.setattr(contrastive, "fit", lambda *args, **named: trained.append(training.fit(*args, **named)) or trained[-1])
    monkeypatch.setattr(model, "encode", lambda *args: encoded.append((*args, encode(*args))) or encoded[-1][-1])
    x, before = SETS.test[0], {name: value.clone() for name, value in PRETRAINED.items()}
    tuned, adapted = (
        arm(NETS, SETS, PRETRAINED, ROWS, weight=0.0, steps=8, **SIMCLR) for arm in (contrastive.fine_tune, contrastive.adapt)
    )
    ((_, frozen, _, stored),) = encoded  # features of stored views, for the adapter
    assert frozen is PRETRAINED and all(torch.equal(PRETRAINED[name], value) for name, value in before.items())
    assert not torch.allclose(trained[0].params["encoder.1.weight"], PRETRAINED["encoder.1.weight"])
    for classifier, run, scale in ((tuned, trained[0], None), (adapted, trained[1], stored.std())):
        logits = classifier(x)
        _, params, inputs, seen = encoded[-1]
        assert params is run.params
        expected = x.expand(2, *x.shape) if scale is None else NETS.encode(PRETRAINED, x) / scale
        assert torch.allclose(inputs, expected, atol=1e-5)
        assert torch.allclose(logits, seen @ params["head.weight"].mT + params["head.bias"][:, None], atol=1e-6)


@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_adapters_learn_from_the_labels_of_their_pictures(weight):
    digits = data.SmallSets.load("digits", 8, 40)
    nets = networks_of(model.make_encoder("mlp", 8, 16, 8))
    start, rows = training.stack(nets.untrained("simclr")), digits.labelled(100, nets.streams(20))
    own, test = contrastive.adapt(nets, digits, start, rows, weight=weight, steps=400, **SIMCLR), digits.test
    digits.known[1] = digits.known[1].roll(1)  # labels of other pictures
    other = contrastive.adapt(nets, digits, start, rows, weight=weight, steps=400, **SIMCLR)
    hits, chance = ((one(test[0]).argmax(-1) == test[1]).double().mean(1) for one in (own, other))
    assert hits.min() > chance.max() + 0.05


# --- Arms in the linear model and on colour images ---


def test_a_rare_task_has_its_share_and_its_own_weight(monkeypatch):
    world, asked = data.Mixture(2, 2, 3), []

    def learned(world, shares, **setting):
        asked.append((shares, setting))
        weights = torch.cat([torch.ones(2), torch.arange(6).repeat_interleave(2), torch.zeros(3)])
        return weights.diag().expand(4, -1, -1)

    monkeypatch.setattr(contrastive, "pretrain_linear", learned)
    found, optimal = contrastive.pretrain_with_rare_task(world, (0.5, 3.0), 5, **LINEAR)
    assert found.tolist() == [[5.0] * 4] * 2 and optimal.shape == (2, 1)
    edge = theory.drop_threshold(5, 2, 2)
    for (shares, setting), ratio in zip(asked, (0.5, 3.0)):
        assert setting == LINEAR and sum(shares) == pytest.approx(1) and shares[:5] == [shares[0]] * 5
        assert shares[5] / shares[0] == pytest.approx(ratio * edge)
    assert optimal[0, 0] < 1e-3 < 0.02 < optimal[1, 0]


@pytest.fixture
def seen(monkeypatch):
    """Colour images of which views are made, in turn, and the views, which are the images themselves."""
    calls = []
    monkeypatch.setattr(data, "colour_view", lambda x, g, side: calls.append((x, g.initial_seed(), side)) or x)
    return calls


def test_a_step_takes_two_views_of_as_many_images_of_each_set(seen):
    """Both sets are seen once in a pass; the order and the streams of the first one are the same with the second one."""
    runs = []
    for sets in ([NOISE], [NOISE, NOISE - 2]):
        seen.clear()
        contrastive.pretrain_colour(model.colour_network([4] * 4, 0), sets, seed=0, **COLOUR)
        runs.append([(x, g, side) for x, g, side in seen if x.min() >= 0])
        assert len(seen) == 20 * len(sets) and {side for *_, side in seen} == {6}
        for first in (0, -2)[: len(sets)]:
            images = [x for x, *_ in seen if (x.min() < 0) == (first < 0)]
            assert len(images) == 20 and all(torch.equal(a, b) for a, b in zip(images[::2], images[1::2]))
            for one_pass in (images[:10:2], images[10::2]):
                assert torch.equal(torch.cat(one_pass).flatten(1).sum(1).sort()[0], (NOISE + first).flatten(1).sum(1).sort()[0])
            assert all(len(x) == 8 for x in images) and not torch.equal(images[0], images[10])
    assert all(torch.equal(a[0], b[0]) and a[1:] == b[1:] for a, b in zip(*runs))
    assert len({g for _, g, _ in seen}) == 2


def test_the_loss_on_colour_images_is_that_of_the_method(monkeypatch, seen):
    """With all images in one batch, without steps; the two views differ."""
    monkeypatch.setattr(data, "colour_view", lambda x, g, side: x.flip(-1) if seen.append(x) or len(seen) % 2 else x)
    net = model.colour_network([4] * 4, 0).train()
    with torch.no_grad():
        z1, z2 = (F.normalize(net(x)[0], dim=-1) for x in (NOISE.flip(-1), NOISE))
    setting = COLOUR | {"batch": 40, "step_size": 0.0}
    simclr, _ = contrastive.pretrain_colour(model.colour_network([4] * 4, 0), [NOISE], seed=0, **setting)
    assert simclr == pytest.approx(contrastive.nt_xent(z1, z2, 0.3).item(), rel=1e-4)
    _, moco, _ = contrastive.pretrain_colour(
        model.colour_network([4] * 4, 0), [NOISE], seed=0, **setting | {"method": "moco", "queue": 1, "passes": 3}
    )
    keys = torch.cat([z1, z2])  # of the step before
    expected = contrastive._info_nce(z1, z2, keys, 0.3) + contrastive._info_nce(z2, z1, keys, 0.3)
    assert moco == pytest.approx(expected.item(), rel=1e-4)


def test_the_queue_has_room_for_as_many_images_of_the_first_set_with_another(descents):
    for sets in ([NOISE], [NOISE, NOISE]):
        with pytest.raises(AttributeError):  # of what stands in for a run
            contrastive.pretrain_colour(model.colour_network([4] * 4, 0), sets, seed=0, **COLOUR | {"method": "moco"})
        assert descents[-1][1]["queue"].shape[1] == descents[-1][0].queue == 2 * 2 * 8 * len(sets)


def test_a_network_of_colour_images_learns_with_a_warm_up_and_a_cosine(monkeypatch):
    kept = []
    monkeypatch.setattr(contrastive, "fit", lambda *given, **how: kept.append(how) or training.fit(*given, **how))
    for method in ("simclr", "moco"):
        net = model.colour_network([4] * 4, 0)
        before = [value.detach().clone() for value in net.parameters()]
        losses = contrastive.pretrain_colour(net, [NOISE], seed=0, **COLOUR | {"passes": 8, "method": method})
        assert len(losses) == 40 and not any(torch.equal(old, new) for old, new in zip(before, net.parameters()))
        rates = [kept[-1]["optimizer"].lr(step) / 0.002 for step in (0, 1, 2, 21, 40)]
        assert rates == pytest.approx([0.5, 1, 1, 0.5, 0]) and kept[-1]["optimizer"].weight_decay == 1e-4


def test_statistics_for_a_probe_are_those_of_the_images_that_are_probed(images):
    encoder = model.colour_network([4] * 4, 0).encoder
    for one in (*images, images[0]):
        x = one.unlabelled
        with torch.no_grad():
            first = encoder[0](x)
            found = contrastive.for_probing(encoder, one)
            assert not found.training and torch.allclose(found[1].running_mean, first.mean((0, 2, 3)), atol=1e-6)
            assert torch.allclose(found[1].running_var, first.var((0, 2, 3)), rtol=1e-4)
            assert torch.allclose(found[1](first).mean((0, 2, 3)), torch.zeros(4), atol=1e-5)


@pytest.fixture
def images(tmp_path, monkeypatch):
    """Colour images and grey ones, each of one value, and with the value's last digit as its label."""
    arrays = {}
    for name, shape in (("cifar10", (8, 8, 3)), ("mnist", (8, 8))):
        x = np.broadcast_to(np.arange(120, dtype=np.uint8).reshape(-1, *[1] * len(shape)), (120, *shape))
        x = x if name == "cifar10" else x + np.uint8(120)
        arrays = {"x_train": x[:100], "y_train": np.arange(100) % 10, "x_test": x[100:], "y_test": np.arange(100, 120) % 10}
        np.savez(tmp_path / f"{name}.npz", **arrays)
    monkeypatch.setenv("MVNB_DATA", str(tmp_path))
    return [data.ColourImages(name, 80, 20, 40, 8, 5, "cpu") for name in ("cifar10", "mnist")]


def test_images_are_divided_and_keep_their_labels(images):
    for one, first in zip(images, (0, 120)):
        values = {part: (255 * x[:, 0, 0, 0]).round().long() - first for part, x in one.x.items()}
        assert [len(part) for part in values.values()] == [20, 60, 40]
        assert torch.cat(list(values.values())).sort().values.tolist() == list(range(120))
        assert all(torch.equal(values[part] % 10, one.y[part]) for part in values)
        assert torch.equal(one.unlabelled, torch.cat([one.x["valid"], one.x["labelled"]])) and one.unlabelled.shape[1:] == (
            3,
            8,
            8,
        )
    again, other = (data.ColourImages("cifar10", 80, 20, 40, 8, seed, "cpu") for seed in (5, 6))
    assert torch.equal(again.unlabelled, images[0].unlabelled) and not torch.equal(other.unlabelled, images[0].unlabelled)


def test_arms_on_colour_images(images, monkeypatch):
    trained, pretrain = [], contrastive.pretrain_colour
    monkeypatch.setattr(contrastive, "pretrain_colour", lambda *args, **named: trained.append(args) or pretrain(*args, **named))

    def arm(**changes):
        return contrastive.colour_arm(*images, **{"widths": [4] * 4, "added": 0, "seed": 1} | COLOUR | changes)

    pixels, losses = arm(widths=[])
    assert not losses and torch.equal(pixels(NOISE), F.avg_pool2d(NOISE, 2).flatten(1))
    untrained, losses = arm(method="")
    start = model.colour_network([4] * 4, 1).encoder.eval()
    assert not losses and not trained and torch.allclose(untrained.eval()(NOISE), start(NOISE), atol=1e-5)
    for added in (0, 1):
        encoder, losses = arm(added=added)
        assert encoder is trained[-1][0].encoder and len(losses) == 20
        assert [torch.equal(a, b.unlabelled) for a, b in zip(trained[-1][1], images, strict=bool(added))] == [True] * (
            1 + added
        )
        assert not torch.equal(encoder.eval()(NOISE), start(NOISE))


def test_networks_of_colour_images_follow_the_path_of_an_optimizer_of_pytorch(monkeypatch):
    monkeypatch.setattr(data, "colour_view", lambda x, g, side: x + 0.1 * torch.rand(x.shape, generator=g))
    nets = [model.colour_network([4, 4, 4, 5], 0) for _ in range(2)]
    found = contrastive.pretrain_colour(nets[0], [NOISE], seed=0, **COLOUR | {"batch": 40, "passes": 6})
    adam, streams = torch.optim.AdamW(nets[1].parameters(), 0.002, weight_decay=1e-4), [gen(1000)]
    order, expected = gen(0), []
    for step in range(6):
        x = NOISE[torch.randperm(40, generator=order)]
        views = [data.colour_view(x, streams[0], 6).to(memory_format=torch.channels_last) for _ in range(2)]
        loss = contrastive.nt_xent(*(F.normalize(nets[1](view)[0], dim=1) for view in views), 0.3)
        adam.param_groups[0]["lr"] = 0.002 * training.cosine(step, 6, 1)
        adam.zero_grad()
        loss.backward()
        adam.step()
        expected.append(loss.item())
    assert found == pytest.approx(expected, rel=1e-4)
    for name, value in nets[1].state_dict().items():
        assert torch.allclose(nets[0].state_dict()[name], value, rtol=1e-3, atol=1e-4), name
