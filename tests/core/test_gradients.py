"""Autograd through every function that readers may put into a loss: right, refused, or nothing to differentiate."""

import importlib
import inspect
import pkgutil

import pytest
import torch
from torch import nn

import mvnb.models
import mvnb.papers
from mvnb import losses, models, probes, training
from mvnb.data import Patches
from mvnb.gradients import _scale, nuclear_norm_and_slope, with_slope
from mvnb.papers.algorithmic_stability import measures
from mvnb.papers.contrastive_tradeoff import measure as contrastive_measure
from mvnb.papers.contrastive_tradeoff import theory as contrastive_theory
from mvnb.papers.contrastive_tradeoff import training as contrastive
from mvnb.papers.decision_lists.theory import ColumnPopulation, forward_backward, objective
from mvnb.papers.feature_emergence.tangent import tangent_features, tangent_objective, tangent_outputs
from mvnb.papers.fine_grained_labels.model import max_read_out, relu_logits, relu_responses
from mvnb.papers.fourier_features.polynomial import _neuron_norms, group_norm, polynomial_logits
from mvnb.papers.icl_and_scale.icl import self_attention
from mvnb.papers.local_signal_adaptivity.model import SoftThresholdFilter
from mvnb.papers.looped_transformers.theory import linear_attention
from mvnb.papers.mask_reconstruction.model import FineTuneObjective, TeacherStudentObjective
from mvnb.papers.midpoint_mixup import measure
from mvnb.papers.nuclear_norm.training import stable_rank

Y = torch.tensor([0, 2, 1, 2])


def numbers(*shape, seed=0, shift=0.0):
    g = torch.Generator().manual_seed(seed + 100 * len(shape) + sum(shape))
    return (torch.randn(*shape, generator=g, dtype=torch.float64) + shift).requires_grad_()


def linear(x):
    return x @ numbers(3, 3, seed=5).detach()


def transformer(params):
    one = {k: v[None] for k, v in params.items()}
    return models.transformer_logits(one, torch.tensor([[[1, 0, 2]]]), n_heads=2)


def transformer_stream(params):
    return models.residual_stream({k: v[None] for k, v in params.items()}, torch.tensor([[[1, 0, 2]]]), n_heads=2)


def of_dict(function, **shapes):
    """A function of a dictionary of tensors as one of the tensors, with inputs."""
    return lambda *values: function(dict(zip(shapes, values))), tuple(numbers(*s) for s in shapes.values())


def of_two(function, **shapes):
    n, inputs = len(shapes), [numbers(*s, seed=i) for i in range(2) for s in shapes.values()]
    return lambda *v: function(dict(zip(shapes, v[:n])), dict(zip(shapes, v[n:]))), tuple(inputs)


SMALL = models.initial_parameters(3, 3, 4, 1, torch.Generator().manual_seed(0), std=0.5, dtype=torch.float64)
X = numbers(1, 4, 2).detach()
GATES = [
    v.detach() for v in tangent_features({"w": numbers(1, 3, 2), "b": numbers(1, 3), "a": numbers(1, 3)}, numbers(1, 4, 2))
]
# In losses, probes, models and chapter 01: the name of each function, and how to call it so that a gradient can be compared.
DIFFERENTIABLE = {
    losses.cross_entropy: (lambda x: losses.cross_entropy(linear, x, Y), (numbers(4, 3),)),
    losses.mixup: (
        lambda x, x2, lam: losses.mixup(linear, x, Y, x2, Y.flip(0), lam),
        (numbers(4, 3), numbers(4, 3, seed=1), torch.full((4,), 0.3, dtype=torch.float64, requires_grad=True)),
    ),
    losses.mixup_all_pairs: (lambda x: losses.mixup_all_pairs(linear, x, Y, 0.3), (numbers(4, 3),)),
    losses.midpoint_mixup: (lambda x: losses.midpoint_mixup(linear, x, Y), (numbers(4, 3),)),
    losses.masked_reconstruction: (
        lambda x: losses.masked_reconstruction(torch.tanh, x, torch.eye(4, 3)),
        (numbers(4, 3, 2),),
    ),
    losses.nuclear_norm: (losses.nuclear_norm, (numbers(2, 5, 3),)),
    probes.own_correlations: (probes.own_correlations, (numbers(3, 2, 6),)),
    probes.max_correlation: (probes.max_correlation, (numbers(3, 2, 6),)),
    measure.total_correlation: (lambda w: measure.total_correlation(w, 0.1), (numbers(3, 2, 6),)),
    measure.balance: (measure.balance, (torch.tensor([[2.0, 1.0], [3.0, -1.0], [-1.0, -2.0]]).double().requires_grad_(),)),
    probes.cosines: (probes.cosines, (numbers(3, 4), numbers(2, 4, seed=1))),
    probes.parameter_norm: of_dict(probes.parameter_norm, w=(2, 3, 2), b=(2, 3)),
    probes.ridge_fit: (lambda x, y: probes.ridge_fit(x, y, 0.1), (numbers(3, 5), numbers(3, 2))),
    models.patch_features: (
        lambda w, x, b: models.patch_features(w, x, torch.tensor([1, 2]), 3, 0.5, b),
        (numbers(4, 3), numbers(5, 2, 3), numbers(4)),
    ),
    models.patch_logits: (
        lambda w, x, b: models.patch_logits(w, x, None, 3, 0.5, b),
        (numbers(2, 2, 3), numbers(5, 2, 3), numbers(2, 2)),
    ),
    models.residual_stream: of_dict(transformer_stream, **{k: v.shape for k, v in SMALL.items() if k != "head"}),
    models.transformer_logits: of_dict(transformer, **{k: v.shape for k, v in SMALL.items()}),
    models.smoothed_relu: (lambda x: models.smoothed_relu(x, 3, 0.5), (numbers(6),)),
    models.two_layer_outputs: of_dict(lambda p: models.two_layer_outputs(p, X), w=(1, 3, 2), b=(1, 3), a=(1, 3)),
}
CONSTANT = {
    probes.accuracy: lambda z: probes.accuracy(z, Y),
    measure.class_accuracy: lambda z: measure.class_accuracy(z, Y),
    measure.feature_accuracy: lambda z: measure.feature_accuracy(
        lambda x, m: z[None], Patches(torch.ones(4, 1, 6).double(), Y, torch.ones(1))
    ),
}
WITHOUT_INPUT = {losses.sample_mixing, models.initial_parameters}
REFUSING = {probes.linear_probe}
# In the papers: losses and what they are made of.
OF_PAPERS = {
    "tangent_features": of_dict(lambda p: tangent_features(p, X), w=(1, 3, 2), b=(1, 3), a=(1, 3)),
    "tangent_objective": of_dict(
        lambda p: tangent_objective(p, X, torch.ones(1, 4).double(), *GATES)[0], w=(1, 3, 2), b=(1, 3), a=(1, 3)
    ),
    "tangent_outputs": of_dict(lambda p: tangent_outputs(p, X, *GATES), w=(1, 3, 2), b=(1, 3), a=(1, 3)),
    "linear_cka": (contrastive_measure.linear_cka, (numbers(6, 3), numbers(6, 2))),
    "stable_rank": (stable_rank, (numbers(2, 5, 3),)),
    "parameter_distance": of_two(measures.parameter_distance, w=(2, 3, 2), b=(2, 3)),
    "normalised_distance": of_two(measures.normalised_distance, w=(2, 3, 2), b=(2, 3)),
    "interpolate": of_two(lambda a, b: measures.interpolate(a, b, torch.tensor([0.0, 0.3, 1.0]))["w"], w=(2, 3)),
    "barrier": (lambda c: measures.barrier(c, torch.tensor([0.0, 0.5, 1.0])), (numbers(3, 4),)),
    "nt_xent": (lambda a, b: contrastive.nt_xent(a, b, 0.5), (numbers(4, 3), numbers(4, 3, seed=1))),
    "info_nce": (lambda *v: contrastive._info_nce(*v, 0.5), (numbers(4, 3), numbers(4, 3, seed=1), numbers(5, 3))),
    "nearest": (lambda support: contrastive._nearest(numbers(4, 3, seed=1).detach(), support), (numbers(5, 3),)),
    "pca_objective": (contrastive_theory.pca_objective, (numbers(4, 3, 2), numbers(4), numbers(3))),
    "neuron_norms": of_dict(_neuron_norms, u=(1, 2, 3, 4), w=(1, 4, 3)),
    "group_norm": of_dict(group_norm, u=(1, 2, 3, 4), w=(1, 4, 3)),
    "polynomial_logits": of_dict(lambda p: polynomial_logits(p, torch.tensor([[[0, 1], [2, 2]]])), u=(1, 2, 3, 4), w=(1, 4, 3)),
    "relu_logits": of_dict(lambda p: relu_logits(p, numbers(1, 4, 2, 3).detach()), weight=(1, 2, 3, 3), bias=(1, 2, 3)),
    "relu_responses": (relu_responses, (numbers(1, 2, 3, 3), numbers(1, 2, 3), numbers(1, 4, 2, 3))),
    "max_read_out": (max_read_out, (numbers(4, 6),)),
    "forward_backward": (
        lambda w, v: forward_backward(w, v, torch.tensor([[[0, 1]]]), torch.tensor([[[1, 0]]])).loss,
        (numbers(1, 3, 3), numbers(1, 3, 3, seed=1)),
    ),
    "objective": (
        lambda w, v: objective({"w": w, "v": v}, torch.tensor([[[0, 1]]]), torch.tensor([[[1, 0]]]))[0],
        (numbers(1, 3, 3), numbers(1, 3, 3, seed=1)),
    ),
    "ColumnPopulation": of_dict(
        lambda p: ColumnPopulation(9, 3, 3)(p, torch.ones(1, dtype=torch.float64))[0], entries=(1, 3), outside=(1, 1)
    ),
    "self_attention": (self_attention, (numbers(4, 3), numbers(4), numbers(3), numbers(4), numbers(4, 3))),
    "linear_attention": (linear_attention, (numbers(4, 3), numbers(3, 3), numbers(3, 3, seed=1))),
    "SoftThresholdFilter": (SoftThresholdFilter(numbers(3).detach(), -0.1).double(), (numbers(4, 2, 3),)),
}


def public_functions(module):
    names = getattr(module, "__all__", [n for n, f in vars(module).items() if getattr(f, "__module__", "") == module.__name__])
    return {vars(module)[n] for n in names if inspect.isfunction(vars(module)[n]) and not n.startswith("_")}


def test_every_function_of_losses_probes_models_and_measure_is_listed_here():
    known = DIFFERENTIABLE.keys() | CONSTANT.keys() | WITHOUT_INPUT | REFUSING
    assert known == set().union(*map(public_functions, (losses, probes, models, measure)))


@pytest.mark.parametrize("name", [*DIFFERENTIABLE, *OF_PAPERS], ids=lambda f: f if isinstance(f, str) else f.__name__)
def test_gradients_are_those_of_finite_differences(name):
    function, inputs = (OF_PAPERS if isinstance(name, str) else DIFFERENTIABLE)[name]
    assert torch.autograd.gradcheck(function, inputs)


@pytest.mark.parametrize("function", CONSTANT, ids=lambda f: f.__name__)
def test_piecewise_constant_functions_carry_no_gradient(function):
    assert not CONSTANT[function](numbers(4, 3)).requires_grad


def test_a_ratio_that_is_not_used_has_no_gradient_either():
    for dtype in (torch.float32, torch.float64):
        pair = torch.tensor([-1.0, -2.0], dtype=dtype, requires_grad=True)
        measure.balance(pair).backward()
        assert pair.grad.tolist() == [0, 0]


# --- the nuclear norm ---


def trained(weight):
    """The nuclear norm at the end of a loop that adds ``weight`` times it to a loss."""
    torch.manual_seed(0)
    x, y, layer = torch.randn(40, 6), torch.randint(2, (40,)), nn.Linear(6, 5)
    head = nn.Linear(5, 2)
    optimizer = torch.optim.SGD([*layer.parameters(), *head.parameters()], lr=0.1)
    for _ in range(50):
        h = layer(x)
        loss = nn.functional.cross_entropy(head(h), y) + weight * losses.nuclear_norm(h) / len(x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return losses.nuclear_norm(layer(x)).item()


def test_the_nuclear_norm_trains():
    assert trained(1.0) < 0.5 * trained(0.0)


def test_the_nuclear_norm_trains_in_a_stack_and_under_the_transforms_of_torch_func():
    m = numbers(3, 5, 4)
    _, slope = nuclear_norm_and_slope(m.detach())
    (stacked,) = torch.autograd.grad(torch.vmap(losses.nuclear_norm)(m).sum(), m)
    for found in (stacked, torch.vmap(torch.func.grad(losses.nuclear_norm))(m.detach())):
        torch.testing.assert_close(found, slope)
    flat = torch.ones(4, 3, dtype=torch.float64, requires_grad=True)  # two singular values are zero
    losses.nuclear_norm(flat).backward()
    torch.testing.assert_close(flat.grad, torch.full_like(flat, 12**-0.5).detach())


@pytest.mark.parametrize("scale", [1e-40, 1e-30, 1e-23, 1e-12, 1.0, 1e12, 1e19, 1e30, 1e37])
@pytest.mark.parametrize("shape", [(2, 3), (5, 3)])
def test_squares_of_the_nuclear_norm_neither_underflow_nor_overflow(scale, shape):
    m = (scale * numbers(2, *shape).detach()).float().requires_grad_()
    m.data[1] /= scale  # each matrix of a stack has a scale of its own
    left, values, right = torch.linalg.svd(m.detach().double(), full_matrices=False)
    for norm in (losses.nuclear_norm, torch.vmap(losses.nuclear_norm)):
        (slope,) = torch.autograd.grad(norm(m).sum(), m)
        torch.testing.assert_close(norm(m).double(), values.sum(-1), rtol=1e-5, atol=1e-44)
        torch.testing.assert_close(slope.double(), left @ right, rtol=0, atol=1e-5 if scale > 1e-35 else 1e-3)
    flat = losses.nuclear_norm(torch.full(shape, scale))
    torch.testing.assert_close(flat.item(), float(torch.tensor(scale)) * (shape[0] * shape[1]) ** 0.5, rtol=1e-5, atol=1e-44)


@pytest.mark.parametrize("kind, ends", [(torch.float32, (1e-9, 1e9)), (torch.float64, (1e-75, 1e75))])
def test_matrices_of_ordinary_size_keep_every_bit(kind, ends):
    m = torch.rand(100, 7, 5, dtype=kind, generator=torch.Generator().manual_seed(0)) - 0.5
    for scale in (*ends, 1e-3, 1.0, 1e3):
        assert torch.equal(_scale(scale * m), torch.ones(100, 1, 1, dtype=kind))


def test_the_nuclear_norm_of_zeros_is_zero():
    zeros = torch.zeros(4, 3, requires_grad=True)
    losses.nuclear_norm(zeros).backward()
    assert losses.nuclear_norm(zeros) == 0 and torch.equal(zeros.grad, torch.zeros(4, 3))


def test_a_second_derivative_of_the_nuclear_norm_is_refused():
    m = numbers(5, 3)
    (slope,) = torch.autograd.grad(losses.nuclear_norm(m), m, create_graph=True)
    with pytest.raises(NotImplementedError, match="first derivative only"):
        slope.square().sum().backward()
    value = with_slope(m.detach().sum(), m, torch.ones_like(m).detach())
    assert torch.autograd.grad(value, m)[0].tolist() == torch.ones(5, 3).tolist()


# --- objectives, which return their own gradients ---


def objectives():
    """Every class and function of the package that is an objective of ``training.fit``."""
    for package in (mvnb.models, mvnb.papers):
        for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            if found.name.endswith("__main__") or ".kept." in found.name:
                continue
            module = importlib.import_module(found.name)
            for name, thing in vars(module).items():
                own = getattr(thing, "__module__", "") == module.__name__ and not name.startswith("_")
                if own and name not in OF_PAPERS and name.endswith("Objective"):
                    yield pytest.param(thing, id=f"{module.__name__}.{name}")


@pytest.mark.parametrize("kind", list(objectives()))
def test_every_objective_refuses_tensors_that_require_a_gradient(kind):
    call = kind.__call__ if inspect.isclass(kind) else kind
    instance = [object.__new__(kind)] if inspect.isclass(kind) else []
    wanted = torch.zeros(2, 3, requires_grad=True)
    for arguments in (({"w": wanted},), ({"w": wanted.detach()}, wanted)):
        with pytest.raises(ValueError, match=r"takes tensors without requires_grad, got one of shape \(2, 3\)"):
            call(*instance, *arguments)


def test_there_are_objectives_in_the_core_and_in_the_papers():
    ids = " ".join(one.id for one in objectives())
    assert all(name in ids for name in ("PatchObjective", "SurvivorObjective", "FineTuneObjective", "RegularisedObjective"))


def test_stacked_objectives_and_probes_refuse_them_too():
    net = nn.Linear(3, 2)
    params = {k: v[None] for k, v in net.named_parameters()}
    batch = torch.ones(1, 4, 3), torch.zeros(1, 4, dtype=torch.long)
    with pytest.raises(ValueError, match="without requires_grad"):
        training.ModuleObjective(net, losses.cross_entropy)(params, *batch)
    features = numbers(1, 4, 3)
    with pytest.raises(ValueError, match="without requires_grad"):
        probes.linear_probe(features, Y[None], 3, training.SGD(0.1), 2, torch.ones(1, 1, 1))
    with pytest.raises(ValueError, match=r"TeacherStudentObjective\.features computes"):
        TeacherStudentObjective(3, 0.1).features(numbers(1, 2, 3), numbers(1, 4, 2, 3).detach())
    with pytest.raises(ValueError, match="FineTuneObjective computes"):
        FineTuneObjective(3, 0.1)({"weight": numbers(1, 2, 3), "head": numbers(1, 2, 2)}, numbers(1, 4, 2, 3), Y[None])


def test_predictions_of_a_stack_are_differentiable():
    net = nn.Linear(3, 2).double()
    params = {k: v.detach()[None].requires_grad_() for k, v in net.named_parameters()}
    training.predict(net, params, torch.ones(1, 4, 3).double()).sum().backward()
    assert (
        params["bias"].grad.tolist() == [[4, 4]]
        and not training.predict(net, training.stack([net]), torch.ones(1, 4, 3).double()).requires_grad
    )
