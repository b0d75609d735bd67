"""Seeds, defaults and arguments as readers give them: what is accepted, and what is refused in one line."""

import numpy as np
import pytest
import torch
from torch import nn

from mvnb import data, losses, models, training
from mvnb.papers.decision_lists.data import DecisionLists
from mvnb.papers.fine_grained_labels.model import ReluPatchObjective
from mvnb.papers.local_signal_adaptivity.data import SignalInNoise
from mvnb.papers.local_signal_adaptivity.model import SoftThresholdFilter
from mvnb.papers.local_signal_adaptivity.training import SoftThresholdObjective, SurvivorObjective
from mvnb.papers.mask_reconstruction.data import SparseMultiView
from mvnb.papers.mask_reconstruction.model import FineTuneObjective, MaskedAutoencoderObjective
from mvnb.seeds import as_generator

R = 4
WORLD = data.MultiView(3, 20, noise_low=0.1, noise_high=0.2, balanced=True)


def one_line(error) -> str:
    text = str(error.value)
    assert "\n" not in text and len(text) < 250
    return text


# --- seeds ---


SAMPLERS = [
    WORLD,
    data.SimpleMultiView(3),
    data.GaussianMixture.xor(4, 2.0),
    SignalInNoise(10, 3, 0.1),
    SparseMultiView(3, 8, 10),
]


@pytest.mark.parametrize("world", SAMPLERS, ids=lambda world: type(world).__name__)
def test_samples_are_float32_and_a_seed_is_a_new_generator(world):
    by_seed, by_generator = world.sample(4, 0), world.sample(4, torch.Generator().manual_seed(0))
    assert all(torch.equal(a, b) for a, b in zip(by_seed, by_generator))
    assert by_seed[0].dtype == torch.float32
    assert world.sample(4, 0, dtype=torch.float64)[0].dtype == torch.float64


def test_a_generator_goes_on_and_a_seed_begins_anew():
    generator = torch.Generator().manual_seed(0)
    assert as_generator(generator) is generator
    assert not torch.equal(WORLD.sample(4, generator).x, WORLD.sample(4, generator).x)
    assert torch.equal(WORLD.sample(4, np.int64(5)).x, WORLD.sample(4, 5).x)
    assert as_generator(2**64 - 1).initial_seed() in (2**64 - 1, -1)


@pytest.mark.parametrize("seed", [None, 1.0, True, "0", np.random.default_rng(0)])
def test_other_sources_are_refused(seed):
    with pytest.raises(TypeError, match=r"generator must be a seed or a torch.Generator, got") as error:
        WORLD.sample(4, seed)
    one_line(error)


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_seeds_out_of_range_are_refused(seed):
    with pytest.raises(ValueError, match="a seed must lie in 0") as error:
        WORLD.sample(4, seed)
    one_line(error)


# --- losses ---


class PatchNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 3, generator=torch.Generator().manual_seed(0)))

    def forward(self, x, multiplicity):
        return torch.einsum("...npd,p->...nd", x, multiplicity).square() @ self.weight


def written_out(sample):
    """The sample with every patch, as often as it counts."""
    return sample.x.repeat_interleave(sample.multiplicity.long(), 1), sample.y, torch.ones(WORLD.n_patches)


@pytest.mark.parametrize("loss", [losses.cross_entropy, losses.midpoint_mixup])
def test_losses_take_a_sample_with_its_multiplicities(loss):
    net, sample = PatchNet(), WORLD.sample(6, 0)
    value = loss(net, *sample)
    assert torch.allclose(value, loss(net, *written_out(sample)), rtol=1e-4)
    assert not torch.allclose(value, loss(lambda x: net(x, torch.ones(3)), sample.x, sample.y), rtol=1e-2)
    value.backward()
    assert net.weight.grad.abs().sum() > 0


def test_losses_of_pairs_take_multiplicities():
    net, sample = PatchNet(), WORLD.sample(6, 0)
    x, y, multiplicity = sample
    full, *_, ones = written_out(sample)
    for lam in (0.3, torch.rand(6, generator=torch.Generator().manual_seed(1))):
        value = losses.mixup(net, x, y, x.flip(0), y.flip(0), lam, multiplicity)
        assert torch.allclose(value, losses.mixup(net, full, y, full.flip(0), y.flip(0), lam, ones), rtol=1e-4)
    value = losses.mixup_all_pairs(net, x, y, 0.3, multiplicity)
    assert torch.allclose(value, losses.mixup_all_pairs(net, full, y, 0.3, ones), rtol=1e-4)


def test_compiled_and_scripted_models_take_multiplicities():
    net, sample = PatchNet(), WORLD.sample(6, 0)
    value = losses.cross_entropy(net, *sample)
    traced = torch.jit.trace(net, (sample.x, sample.multiplicity))
    for model in (traced, torch.nn.functional.linear):
        inputs = sample if model is traced else (torch.eye(3), torch.tensor([0, 1, 2]), torch.eye(3))
        assert torch.isfinite(losses.cross_entropy(model, *inputs))
    assert torch.allclose(losses.cross_entropy(traced, *sample), value)


def test_losses_train_stacks_on_samples_with_multiplicities():
    sample = training.stack([WORLD.sample(6, g) for g in training.generators(0, R)])
    nets = [PatchNet() for _ in range(R)]
    values, _ = training.ModuleObjective(nets[0], losses.midpoint_mixup)(training.stack(nets), *sample)
    alone = [losses.midpoint_mixup(net, *WORLD.sample(6, r)).item() for r, net in enumerate(nets)]
    assert torch.allclose(values, torch.tensor(alone), rtol=1e-4)


@pytest.mark.parametrize("net", [nn.Linear(6, 3), lambda x: x])
def test_a_model_of_x_alone_is_refused_where_there_are_multiplicities(net):
    with pytest.raises(TypeError, match=r"f must take x and multiplicity, .* got a model of x alone") as error:
        losses.midpoint_mixup(net, *WORLD.sample(6, 0))
    one_line(error)


@pytest.mark.parametrize(
    "loss", [losses.cross_entropy, losses.midpoint_mixup, lambda f, x, y: losses.mixup(f, x, y, x, y, 0.5)]
)
def test_losses_refuse_other_labels_and_samples_in_one_line(loss):
    x, f = torch.randn(5, 3), lambda x: x
    with pytest.raises(TypeError, match=r"x and y must be tensors, got Points and Tensor; unpack a sample") as error:
        loss(f, data.Points(x, torch.zeros(5)), torch.zeros(5))
    one_line(error)
    with pytest.raises(TypeError, match=r"y must hold class indices .* got torch.float32") as error:
        loss(f, *data.GaussianMixture.xor(3 + 1, 2.0).sample(5, 0))
    one_line(error)
    with pytest.raises(ValueError, match=r"y must have shape \(5,\), one label for each point of x, got \(4,\)") as error:
        loss(f, x, torch.zeros(4, dtype=torch.long))
    one_line(error)


@pytest.mark.parametrize("label", [-100, -1, 3])
@pytest.mark.parametrize(
    "loss", [losses.cross_entropy, losses.midpoint_mixup, lambda f, x, y: losses.mixup(f, x, y, x, y, 0.5)]
)
def test_no_label_is_ignored(loss, label):
    x, y = torch.randn(2, 3), torch.tensor([0, label])
    for call in (loss, lambda f, *batch: torch.vmap(lambda *own: loss(f, *own))(*(part[None] for part in batch))):
        with pytest.raises(ValueError, match=f"y must lie in 0 to 2, got {label}") as error:
            call(lambda x: x, x, y)
        one_line(error)


@pytest.mark.parametrize("loss", [losses.cross_entropy, losses.mixup_all_pairs, losses.mixup, losses.masked_reconstruction])
def test_an_empty_batch_is_refused(loss):
    x, y = torch.ones(0, 3, 3), torch.zeros(0, dtype=torch.long)
    rest = {losses.mixup_all_pairs: (y, 0.5), losses.mixup: (y, x, y, 0.5), losses.masked_reconstruction: (x[..., 0],)}
    with pytest.raises(ValueError, match=r"x must have shape \(n, .*got \(0, 3, 3\)") as error:
        loss(lambda x: x, x, *rest.get(loss, (y,)))
    one_line(error)


@pytest.mark.parametrize("kind", [torch.uint8, torch.int32])
def test_labels_of_other_integers_are_class_indices(kind):
    x, y = torch.randn(4, 3), torch.tensor([0, 2, 1, 1])
    for loss in (losses.cross_entropy, losses.midpoint_mixup):
        assert torch.equal(loss(lambda x: x, x, y.to(kind)), loss(lambda x: x, x, y))
        with pytest.raises(TypeError, match=r"y must hold class indices .* got torch.bool"):
            loss(lambda x: x, x, y > 0)


@pytest.mark.parametrize("lam", [7, -0.1, float("nan"), torch.tensor([0.5, 1.5]), torch.tensor([[0.5, -1.0], [0.0, 1.0]])])
def test_mixing_weights_lie_between_0_and_1(lam):
    x, y = torch.randn(2, 3), torch.tensor([0, 1])
    with pytest.raises(ValueError, match=r"lam must lie in 0 to 1, got") as error:
        if torch.is_tensor(lam) and lam.dim() == 2:
            losses.mixup_all_pairs(lambda x: x, x, y, lam)
        else:
            losses.mixup(lambda x: x, x, y, x, y, lam)
    one_line(error)


def test_mixing_weights_in_a_stack_are_not_checked_and_used_as_they_are():
    x, y, lam = torch.randn(3, 2, 4), torch.tensor([[0, 1]] * 3), torch.rand(3, 2)
    found = torch.vmap(lambda *one: losses.mixup(lambda x: x, *one))(x, y, x.flip(1), y.flip(1), lam)
    alone = [losses.mixup(lambda x: x, x[r], y[r], x[r].flip(0), y[r].flip(0), lam[r]) for r in range(3)]
    assert torch.allclose(found, torch.stack(alone))


def test_partners_have_the_shape_of_the_points():
    x, y = torch.randn(4, 3), torch.zeros(4, dtype=torch.long)
    with pytest.raises(ValueError, match=r"x2 must have the shape of x, \(4, 3\), got \(4, 1\)"):
        losses.mixup(lambda x: x, x, y, x[:, :1], y, 0.5)


def test_a_weight_for_every_pair_has_one_shape():
    with pytest.raises(ValueError, match=r"lam must be a number or have shape \(5, 5\), got \(5,\)") as error:
        losses.mixup_all_pairs(lambda x: x, torch.randn(5, 3), torch.zeros(5, dtype=torch.long), torch.ones(5))
    one_line(error)


def test_masked_reconstruction_is_the_loss_of_the_masked_autoencoder():
    x = SparseMultiView(3, 8, 10).sample(7, 0, dtype=torch.float64).x
    generator = torch.Generator().manual_seed(1)
    weight = 0.5 * torch.randn(6, 10, dtype=torch.float64, generator=generator)
    mask = torch.rand(7, 8, generator=generator) < 0.4
    want, by_hand = MaskedAutoencoderObjective(3, 0.5)({"weight": weight[None]}, x[None], 0.4, mask[None])
    weight.requires_grad_()
    value = losses.masked_reconstruction(lambda z: models.smoothed_relu(z @ weight.T, 3, 0.5) @ weight / 0.4, x, mask)
    assert torch.allclose(value, want[0], rtol=1e-12)
    value.backward()
    assert torch.allclose(weight.grad, by_hand["weight"][0], rtol=1e-10)


@pytest.mark.parametrize("x, mask", [((5, 3), (5,)), ((5, 4, 3), (5, 3)), ((5, 4, 3), (5, 4, 3))])
def test_masks_have_one_entry_per_patch(x, mask):
    with pytest.raises(ValueError, match=r"mask \(n, patches\), got") as error:
        losses.masked_reconstruction(lambda z: z, torch.ones(x), torch.ones(mask))
    one_line(error)


# --- fit ---

NET = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
PARAMS = training.stack([NET] * R)
X, Y = torch.randn(R, 5, 3), torch.zeros(R, 5, dtype=torch.long)
OBJECTIVE = training.ModuleObjective(NET, losses.cross_entropy)


def fit(objective=OBJECTIVE, params=PARAMS, batch=(X, Y), optimizer=None):
    return training.fit(objective, params, batch, steps=2, optimizer=optimizer or training.SGD(0.1))


@pytest.mark.parametrize(
    "arguments, kind, message",
    [
        (
            {"optimizer": torch.optim.Adam(NET.parameters())},
            TypeError,
            "optimizer must be an SGD, Adam, AdamW or FlowGD .* torch.optim",
        ),
        ({"params": NET}, TypeError, "params must be a Run or a dictionary of tensors .* got Sequential"),
        ({"params": {}}, TypeError, "params must be a Run or a dictionary of tensors"),
        ({"params": dict(NET.named_parameters())}, ValueError, "params must have a leading replica axis of equal length"),
        ({"params": {"weight": torch.ones(())}}, ValueError, "params must have a leading replica axis"),
        ({"batch": (X[0], Y[0])}, ValueError, r"batch\[0\] must have the replica axis .* shape \(4, ...\), got \(5, 3\)"),
        ({"batch": (X, Y[0])}, ValueError, r"batch\[1\] must have the replica axis .* got \(5,\)"),
        ({"batch": lambda step: (X, Y[:2])}, ValueError, r"batch\[1\] must have the replica axis .* got \(2, 5\)"),
        ({"optimizer": training.SGD}, TypeError, "optimizer must be an SGD, Adam, AdamW or FlowGD .* got the class mvnb"),
        ({"params": {"bias": torch.zeros(R, 2)}}, ValueError, r"params must contain 0.weight, 0.bias, .* got bias"),
        ({"batch": X}, TypeError, "batches must be a tuple of tensors or a function of the step, got Tensor"),
        ({"batch": [(X, Y)]}, TypeError, r"batch\[0\] must be a tensor, got tuple"),
        ({"params": {k: nn.Parameter(v) for k, v in PARAMS.items()}}, ValueError, "takes tensors without requires_grad"),
    ],
)
def test_fit_names_the_argument_what_it_expects_and_what_it_got(arguments, kind, message):
    with pytest.raises(kind, match=message) as error:
        fit(**arguments)
    one_line(error)


@pytest.mark.parametrize("value, received", [(torch.ones(()), r"\(\)"), (torch.ones(3), r"\(3,\)"), (1.0, "float")])
def test_a_probe_returns_one_row_per_replica(value, received):
    with pytest.raises(ValueError, match=rf"probe 'one' must return a tensor of shape \(4, ...\), .* got {received}") as error:
        training.fit(OBJECTIVE, PARAMS, (X, Y), steps=1, optimizer=training.SGD(0.1), probes={"one": lambda params: value})
    one_line(error)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"log_at": [0, 1.5, 2]}, r"steps and log_at must be integers, got 2 and \[0, 1.5, 2\]"),
        ({"log_at": [0, float("nan")]}, "steps and log_at must be integers"),
        ({"steps": 1.5}, "steps and log_at must be integers, got 1.5"),
        ({"probes": {"loss": lambda params: params["0.bias"]}}, "probes must have other names than 'loss' .* got 'loss'"),
        ({"probes": {"time": lambda params: params["0.bias"]}}, "probes must have other names .* got 'time'"),
        ({"optimizer": training.SGD(lambda step: -1)}, "lr must lie in 0 to inf, got -1"),
        ({"optimizer": training.Adam(lambda step: float("nan"))}, "lr must lie in 0 to inf, got nan"),
        (
            {"optimizer": training.SGD(lambda step: torch.tensor([1.0, 1.0, -1.0, 1.0]))},
            "lr must lie in 0 to inf, got -1.0 to 1.0",
        ),
        ({"optimizer": training.Adam(lambda step: -torch.ones(R))}, "lr must lie in 0 to inf, got -1.0"),
    ],
)
def test_fit_refuses_numbers_and_names_that_it_would_misread(arguments, message):
    arguments = {"steps": 2, "optimizer": training.SGD(0.1)} | arguments
    with pytest.raises(ValueError, match=message) as error:
        training.fit(OBJECTIVE, PARAMS, (X, Y), **arguments)
    one_line(error)


def test_steps_to_log_at_may_be_integers_of_any_type():
    for log_at in ([0.0, 2.0], np.array([0, 2]), torch.tensor([0, 2]), (step for step in (0, 2))):
        run = training.fit(OBJECTIVE, PARAMS, (X, Y), steps=2, optimizer=training.SGD(0.1), log_at=log_at)
        assert run.steps.tolist() == [0, 2]


def test_an_objective_returns_one_loss_per_replica():
    with pytest.raises(ValueError, match=r"objective must return .* \(4,\), one number per replica, got \(\)"):
        fit(lambda params, x, y: (params["0.bias"].sum(), {}))


@pytest.mark.parametrize(
    "value, received", [(torch.tensor(True), r"\(\)"), (torch.ones(4, 1) > 0, r"\(4, 1\)"), (True, "bool")]
)
def test_a_stop_is_decided_for_each_replica(value, received):
    with pytest.raises(ValueError, match=rf"until must return .* \(4,\), one number per replica, got {received}") as error:
        training.fit(OBJECTIVE, PARAMS, (X, Y), steps=1, optimizer=training.SGD(0.1), until=lambda params, loss: value)
    one_line(error)


@pytest.mark.parametrize(
    "items, kind, message",
    [
        ([], ValueError, "items must hold at least one sample or module, got none"),
        ([(X, Y), (X,)], ValueError, "items must be samples of the same length, got 2 and 1"),
        ([(X,), (X, Y)], ValueError, "items must be samples of the same length, got 1 and 2"),
        ([X, X], TypeError, "items must be modules or tuples of tensors, got Tensor"),
        ([nn.Sequential(nn.Linear(2, 2)), nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))], ValueError, "the same parameters"),
    ],
)
def test_what_cannot_be_stacked_is_refused(items, kind, message):
    with pytest.raises(kind, match=message) as error:
        training.stack(items)
    one_line(error)


@pytest.mark.parametrize("index", [-1, 3])
def test_an_index_of_another_replica_is_refused(index):
    with pytest.raises(ValueError, match="index must lie in 0 to 2, got"):
        training.pick_own(torch.arange(6).view(2, 3), torch.tensor([[0, index], [0, 1]]))


def test_fresh_samples_have_generators_and_as_many_points_as_were_asked_for():
    with pytest.raises(ValueError, match="generators must hold one generator per replica, got none"):
        training.Fresh(WORLD.sample, 2, [])
    with pytest.raises(ValueError, match="draw must return 8 points in every tensor, got 7"):
        training.Fresh(lambda n, g: (X[0, 0].expand(n, 3), torch.zeros(n - 1)), 2, training.generators(0, 1), block=4)(0)
    with pytest.raises(ValueError, match="block must be at least 1, got 0"):
        training.in_blocks(lambda step: (X,), "cpu", block=0)


@pytest.mark.parametrize("make", [lambda seed: training.generators(seed, 2), lambda seed: training.stream(seed, 0)])
def test_generators_take_the_seeds_that_samplers_take(make):
    with pytest.raises(ValueError, match=r"a seed must lie in 0 to 2.64 - 1, got -1"):
        make(-1)


def test_plain_tuples_are_stacked_as_samples_are():
    assert [part.shape for part in training.stack([(X[0], Y[0])] * 3)] == [(3, 5, 3), (3, 5)]


def test_an_unstacked_multiplicity_is_refused():
    x, y, _ = training.stack([WORLD.sample(6, g) for g in training.generators(0, R)])
    params = {"weight": torch.randn(R, 3, 2, 6)}
    with pytest.raises(ValueError, match=r"batch\[2\] must have the replica axis .* shape \(4, ...\), got \(3,\)"):
        fit(models.PatchObjective(3, 0.5), params, (x, y, WORLD.sample(6, 0).multiplicity))


@pytest.mark.parametrize(
    "y, kind, message",
    [
        (-1, TypeError, "y must be a tensor of class indices .*, got int"),
        ([0, 1], TypeError, "y must be a tensor .*, got list"),
        (torch.zeros(2), TypeError, "y must be a tensor .*, got torch.float32"),
        (torch.tensor([True, False]), TypeError, "y must be a tensor .*, got torch.bool"),
        (torch.tensor(1), ValueError, r"y must have shape \(2,\), got \(\)"),
        (torch.tensor([0, -1]), ValueError, "y must lie in 0 to 2, got -1 to 0"),
        (torch.tensor([3, 0]), ValueError, "y must lie in 0 to 2, got 0 to 3"),
    ],
)
@pytest.mark.parametrize("world", [WORLD, SparseMultiView(3, 8, 10)], ids=["multi-view", "sparse"])
def test_given_labels_are_classes(world, y, kind, message):
    assert world.sample(2, 0, y=torch.tensor([2, 0])).y.tolist() == [2, 0]
    with pytest.raises(kind, match=message) as error:
        world.sample(2, 0, y=y)
    one_line(error)


@pytest.mark.parametrize("token", [-1, 6])
def test_a_token_that_sequences_contain_exists(token):
    with pytest.raises(ValueError, match=f"containing must be a token from 0 to 5, got {token}"):
        DecisionLists(torch.arange(6)[:, None], torch.arange(6), 3).sample(2, 0, containing=token)


# --- objectives ---

W, B = torch.randn(R, 3), torch.zeros(R)
SIGNAL = [part.expand(R, *part.shape) for part in SignalInNoise(8, 3, 0.1).sample(5, 0)]
PATCHES = training.stack([WORLD.sample(6, g) for g in training.generators(0, R)])
FILTERS = {"weight": torch.randn(R, 3, 2, 6)}


@pytest.mark.parametrize(
    "objective, params, batch, message",
    [
        (
            models.PatchObjective(3, 0.5),
            FILTERS,
            WORLD.sample(6, 0),
            r"PatchObjective: x must have shape \(R, n, patches, dim\)",
        ),
        (
            models.PatchObjective(3, 0.5),
            FILTERS,
            (*PATCHES[:2], PATCHES.multiplicity[0]),
            r"multiplicity .* \(R, patches\), got",
        ),
        (models.PatchObjective(3, 0.5), FILTERS, (PATCHES.x, PATCHES.y.float(), PATCHES.multiplicity), "y must hold integers"),
        (
            models.PatchObjective(3, 0.5),
            FILTERS,
            (PATCHES.x, PATCHES.y + 1, PATCHES.multiplicity),
            "y must lie in 0 to 2, got 1 to 3",
        ),
        (
            models.PatchObjective(3, 0.5),
            FILTERS,
            (PATCHES.x, PATCHES.y - 1, PATCHES.multiplicity),
            "y must lie in 0 to 2, got -1",
        ),
        (
            models.PatchObjective(3, 0.5),
            FILTERS,
            (*PATCHES[:2], PATCHES.multiplicity * torch.arange(1, R + 1)[:, None]),
            "multiplicity must be the same in all replicas, got different rows",
        ),
        (
            SoftThresholdObjective(),
            {"w": W, "b": B},
            (SIGNAL[0][:, :3], torch.zeros(R, 3)),
            "y must hold labels -1 and 1, got 0",
        ),
        (models.PatchObjective(3, 0.5), FILTERS, (PATCHES.x[..., :5], *PATCHES[1:]), "x .* with dim = 6, got"),
        (models.PatchObjective(3, 0.5), {"w": W}, PATCHES, "params must contain weight, got w"),
        (
            models.TwoLayerObjective(),
            {"w": W[:, None], "b": B[:, None], "a": B},
            (X, X[..., 0]),
            r"a must have shape \(R, width\)",
        ),
        (
            SoftThresholdObjective(),
            {"w": W, "b": B},
            [part[0] for part in SIGNAL],
            r"SoftThresholdObjective: x must have shape",
        ),
        (SoftThresholdObjective(), {"w": W, "b": B[0]}, SIGNAL, r"b must have shape \(R\), got \(\)"),
        (SurvivorObjective(8, 0.1, 5), {"w": W, "b": B}, (B,), "keys must hold integers"),
        (ReluPatchObjective(0.1), FILTERS | {"bias": B}, PATCHES[:2], r"bias must have shape \(R, classes, neurons\)"),
        (MaskedAutoencoderObjective(3, 0.5), {"weight": W[:, None]}, (SIGNAL[0][0], 0.5), "MaskedAutoencoderObjective: x must"),
        (FineTuneObjective(3, 0.5), {"weight": W[:, None]}, SIGNAL, "params must contain head, got weight"),
        (models.AnswerObjective(1), {"embedding": W}, (W, B), r"tokens must have shape \(R, n, length\)"),
    ],
)
def test_objectives_name_the_argument_what_they_expect_and_what_they_got(objective, params, batch, message):
    with pytest.raises(ValueError, match=message) as error:
        objective(params, *batch)
    one_line(error)


def test_an_objective_refuses_the_parameters_of_a_module():
    net = SoftThresholdFilter(torch.randn(3))
    with pytest.raises(ValueError, match="takes tensors without requires_grad") as error:
        SoftThresholdObjective()({k: p[None] for k, p in net.named_parameters()}, *(part[:1] for part in SIGNAL))
    one_line(error)


def test_losses_of_what_is_no_model_or_no_matrix_are_refused():
    with pytest.raises(TypeError, match="f must be a model, a function of x, got Tensor"):
        losses.cross_entropy(torch.zeros(4, 2), torch.zeros(4, 2), torch.zeros(4, dtype=torch.long))
    with pytest.raises(ValueError, match=r"matrix must have shape \(..., n, k\) with n, k >= 1, got \(3,\)"):
        losses.nuclear_norm(torch.ones(3))


# --- models ---

TOKENS = torch.zeros(2, 1, 5, dtype=torch.long)


def transformer(tokens=TOKENS, n_layers=1, n_heads=2, **how):
    params = training.to_device(models.initial_parameters(7, 5, 4, n_layers, 0), "cpu")
    params = {k: v.expand(2, *v.shape) for k, v in params.items()}
    return models.transformer_logits(params, tokens, n_heads=n_heads, **how)


@pytest.mark.parametrize(
    "call, message",
    [
        (
            lambda: models.smoothed_relu(X, float("nan"), 1.0),
            "power must be at least 1 and threshold positive, both finite, got",
        ),
        (lambda: models.smoothed_relu(X, 2, float("inf")), "both finite, got power=2, threshold=inf"),
        (lambda: models.smoothed_relu(X, 2, float("nan")), "both finite, got power=2, threshold=nan"),
        (lambda: models.PatchObjective(float("nan"), 0.5), "power must be an integer of at least 2, got nan"),
        (lambda: models.PatchObjective(float("inf"), 0.5), "power must be an integer of at least 2, got inf"),
        (lambda: models.PatchObjective(3, 0.0), "threshold must be positive and finite, got 0.0"),
        (lambda: models.PatchObjective(3, -1.0), "threshold must be positive and finite, got -1.0"),
        (
            lambda: models.PatchObjective(3, 0.5)(FILTERS, *PATCHES, lam=torch.full((R, 6, 6), 7.0)),
            "PatchObjective: lam must lie in 0 to 1, got 7.0",
        ),
        (
            lambda: models.PatchObjective(3, 0.5)(FILTERS, *PATCHES, lam=torch.ones(R, 6)),
            r"lam must have shape \(R, n, n\), got",
        ),
        (lambda: models.MLP([6]), r"widths must hold at least two numbers of at least 1, got \[6\]"),
        (lambda: models.MLP([6, 0, 2]), "widths must hold at least two numbers of at least 1"),
        (lambda: transformer(norm="Pre"), "norm must be 'pre', 'post' or 'none', got 'Pre'"),
        (lambda: transformer(n_heads=3), "n_heads must divide the dimension of the residual stream, 4, got 3"),
        (lambda: transformer(n_layers=0, last=True), "params must contain at least one layer if last is true, got none"),
        (lambda: transformer(TOKENS + 7), "tokens must lie in 0 to 6, got 7"),
        (lambda: transformer(TOKENS - 1), "tokens must lie in 0 to 6, got -1"),
    ],
)
def test_models_refuse_what_they_would_misread(call, message):
    with pytest.raises(ValueError, match=message) as error:
        call()
    one_line(error)


def test_no_target_of_a_transformer_is_ignored():
    params = {k: v.expand(2, *v.shape) for k, v in models.initial_parameters(7, 5, 4, 1, 0).items()}
    with pytest.raises(ValueError, match="targets must lie in 0 to 6, got -100"):
        models.AnswerObjective(2)(params, TOKENS, torch.full((2, 1), -100))
    with pytest.raises(ValueError, match="targets must lie in 0 to 6, got -100"):
        models.TransformerObjective(2)(params, TOKENS, TOKENS - 100, torch.ones(2, 1, 5), torch.zeros(2, 1, dtype=torch.long))
