"""Lessons keep to what can be read in half an hour, and what a chapter offers as a recipe works."""

from pathlib import Path

import mvnb_lesson
import nbformat
import pytest
import torch
import transformers

from mvnb import losses, probes
from mvnb.data import SimpleMultiView
from mvnb.papers.contrastive_tradeoff import recipe as contrastive_recipe
from mvnb.papers.contrastive_tradeoff.training import nt_xent
from mvnb.papers.decision_lists import recipe, theory
from mvnb.papers.decision_lists.data import DecisionLists
from mvnb.papers.fine_grained_labels.data import CLASSES, TARGET, load_labelled
from mvnb.papers.fine_grained_labels.recipe import train_fine_to_coarse
from mvnb.papers.gemfilter import token_selection
from mvnb.papers.gemfilter.recipe import generate_from_gems
from mvnb.papers.landscape_aware_growing.recipe import grow_by_lag
from mvnb.papers.local_signal_adaptivity.data import SignalInNoise
from mvnb.papers.local_signal_adaptivity.recipe import Threshold, train
from mvnb.papers.looped_transformers import recipe as loops
from mvnb.papers.mask_reconstruction.recipe import masked_loss, pretrain
from mvnb.papers.midpoint_mixup.recipe import train_on_midpoints
from mvnb.papers.nuclear_norm import recipe as nuclear_recipe
from mvnb.papers.nuclear_norm.data import EnvironmentFeatures
from mvnb.runner import catalogue

ROOT = Path(__file__).resolve().parents[2]
LESSONS = {
    chapter.number: cells
    for chapter in catalogue.discover(ROOT)
    if (cells := mvnb_lesson.lesson(nbformat.read(chapter.notebook, as_version=4), chapter.number)) is not None
}
MODELS = {"01", "02", "03", "05", "06", "07", "12", "13", "14", "15"}  # rewritten so far; a chapter that loses its label fails


def test_the_models_have_a_lesson():
    assert set(LESSONS) >= MODELS


@pytest.mark.parametrize("number", LESSONS)
def test_a_lesson_can_be_read_in_half_an_hour(number):
    found = mvnb_lesson.length(LESSONS[number])
    assert found.words <= 2400 and found.words_in_proofs <= 500
    assert found.lines_shown <= 45 and found.lines_folded <= 170
    assert found.formulas <= 14 and found.figures <= 6


def notebook(*cells):
    return nbformat.v4.new_notebook(cells=list(cells))


def test_what_is_counted():
    text = nbformat.v4.new_markdown_cell
    code = nbformat.v4.new_code_cell
    cells = [
        text("# Two words\n\nThree $x + y$ more $$a\n=b$$ (eq-01-x)"),
        text("```{prf:lemma} A name\n:label: l\n\nFive words of a lemma.\n```\n\n```{solution} x\nNot these.\n```"),
        code("import this", metadata={"tags": []}),
        code("# NBVAL_CHECK_OUTPUT\na = 1\n\nb = 2"),
        code("figures.show(\n    fig)", metadata={"tags": ["hide-input"]}),
        code("x", metadata={"tags": ["remove-cell"]}),
        text('Last.\n\n<a id="01-record"></a>\n## The record\n\nNot counted.'),
        code("not_counted = 1"),
    ]
    found = mvnb_lesson.length(mvnb_lesson.lesson(notebook(*cells), "01"))
    assert found == (3 + 4 + 5 + 1, 5, 1, 2, 2, 1)
    assert mvnb_lesson.lesson(notebook(*cells[:3]), "01") is None
    assert mvnb_lesson.Length(2000, 0, 8, 30, 0, 0).minutes == 10 + 8 + 5


def test_the_recipe_of_chapter_06_sorts_the_lists():
    lists = DecisionLists.shifted().lists[None]
    shares = [(theory.list_margin(recipe.train_attention(steps=n).T[None], lists) > 0).double().mean() for n in (1, 60)]
    assert shares[0] < 0.05 and shares[1] > 0.95


def test_the_recipe_of_chapter_01_closes_the_gap_between_two_features():
    k = 4
    points = SimpleMultiView(k, balanced=True).sample(200, torch.Generator().manual_seed(0), dtype=torch.float32)
    linear = torch.nn.Linear(2 * k, k, bias=False)
    with torch.no_grad():
        linear.weight.copy_(6 * torch.eye(2 * k)[::2])  # one feature of every class, and nothing of the other
    torch.manual_seed(0)
    before = losses.midpoint_mixup(linear, *points).item()
    train_on_midpoints(linear, *points, steps=400, step_size=0.02)
    first, second = probes.own_correlations(linear.weight[:, None].detach())[:, 0].T
    assert losses.midpoint_mixup(linear, *points).item() < before
    assert (first - second).max() < 4  # 6 before; trained on single points alike, 5.9


def test_the_recipe_of_chapter_02_gains_from_true_labels_and_not_from_shuffled_ones():
    digits = load_labelled("digits")
    x, target, classes = (
        digits.x.flatten(1)[:500],
        digits.levels[TARGET][:500],
        digits.levels[CLASSES][:500],
    )

    def error(fine, seed):
        torch.manual_seed(seed)
        hidden = torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 32), torch.nn.ReLU()
        net = torch.nn.Sequential(*hidden, torch.nn.Linear(32, 2))
        train_fine_to_coarse(net, x, fine, target, steps=300)
        assert net[-1].out_features == 2
        return (net(digits.x_test.flatten(1)).argmax(1) != digits.y_test).double().mean()

    shuffled = classes[torch.randperm(500, generator=torch.Generator().manual_seed(0))]
    true, wrong = (torch.stack([error(fine, seed) for seed in range(3)]).mean() for fine in (classes, shuffled))
    assert true < 0.04 and true < wrong - 0.01


def test_the_recipe_of_chapter_03_infers_hidden_patches_from_visible_ones():
    g = torch.Generator().manual_seed(0)
    tiles = torch.randn(4, 1, 8, 8, generator=g)  # two by two patches; a visible one tells the others
    pictures = tiles[torch.randint(4, (300,), generator=g)]
    torch.manual_seed(0)
    encoder = torch.nn.Sequential(
        torch.nn.Conv2d(1, 32, 4, 4), torch.nn.ReLU(), torch.nn.Conv2d(32, 32, 3, padding=1), torch.nn.ReLU()
    )
    decoder = torch.nn.Sequential(torch.nn.Conv2d(32, 16, 1), torch.nn.PixelShuffle(4))

    def loss(pictures):
        torch.manual_seed(1)
        return masked_loss(encoder, decoder, torch.zeros(1, 1, 1), pictures).item()

    before = loss(pictures)
    pretrain(encoder, decoder, pictures, steps=300, step_size=3e-3)
    scrambled = pictures[torch.randperm(300, generator=g)]
    alien = torch.cat([pictures[..., :4], scrambled[..., 4:]], -1)  # the halves do not belong together
    assert loss(pictures) < 0.6 * before and loss(pictures) < loss(alien)


def test_the_recipe_of_chapter_05_learns_a_threshold():
    world = SignalInNoise(n_noise=200, dim=10, sigma=0.09)
    x, y = world.sample(1000, 1)
    g = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    model = Threshold(10)

    def right():
        return (model(x).sign() == y).double().mean().item()

    before = right()
    train(model, lambda: world.sample(100, g), 200, steps=600, step_size=0.3)
    after = right()
    with torch.no_grad():
        threshold = -model.b.item() / model.w[0].item()
        model.b.zero_()  # the same filter without its threshold
    assert before < 0.7 and after > 0.97 and right() < after - 0.1 and 0.1 < threshold < 0.9


def test_the_recipe_of_chapter_07_waits_for_the_start_that_begins_worst():
    class Pair(torch.nn.Module):
        def __init__(self, product):
            super().__init__()
            self.weights = torch.nn.Parameter(torch.full((2,), product**0.5))

    def chosen(k):
        steps = []
        candidates = [Pair(product) for product in (0.02, 2.2, 4.0)]
        network, optimizer = grow_by_lag(
            candidates,
            lambda pair, demand: (pair.weights.prod() - demand).square() / 2,
            lambda step: steps.append(step) or 1.0,
            1.0,
            k,
            step_size=0.01,
        )
        assert steps == 3 * [*range(k)]
        assert network.weights is optimizer.param_groups[0]["params"][0]
        return candidates.index(network)

    assert [chosen(k) for k in (0, 30)] == [0, 1]


def test_the_recipe_of_chapter_12_drops_features_that_fail_elsewhere():
    world = EnvironmentFeatures.uniform(r=5, n=20, gamma=0.3)
    x, y = world.sample(1000, 0)
    there, y_there = world.sample(4000, 1, elsewhere=True)
    features = torch.randn(7, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
    value = nuclear_recipe.nuclear_penalty(features)
    assert torch.allclose(7 * value, losses.nuclear_norm(features), atol=1e-5)
    slopes = (torch.autograd.grad(one, features)[0] for one in (7 * value, losses.nuclear_norm(features)))
    assert torch.allclose(*slopes, atol=1e-5)

    def train(weight, head_decay=0.0):
        torch.manual_seed(0)
        body, head = torch.nn.Sequential(torch.nn.Linear(25, 32), torch.nn.ReLU()), torch.nn.Linear(32, 2)
        how = {"steps": 600, "step_size": 0.01, "head_decay": head_decay}
        nuclear_recipe.train_erm_nu(body, head, x, (y > 0).long(), weight, **how)
        return (head(body(there)).argmax(1) == (y_there > 0)).double().mean(), head.weight.norm()

    (without, _), (with_norm, free), (decayed, held) = train(0.0), train(0.2), train(0.2, 0.01)
    assert without < 0.4 and with_norm > 0.9 and decayed > 0.9
    assert held < free / 2  # the head cannot grow as far


def test_the_recipe_of_chapter_13_makes_features_and_then_a_classifier():
    digits = load_labelled("digits")
    x, y = digits.x.flatten(1)[:500], digits.levels[CLASSES][:500]
    torch.manual_seed(0)
    first, second = torch.randn(2, 6, 4)
    lengths = (torch.nn.functional.normalize(part, dim=1) for part in (first, second))
    assert torch.allclose(contrastive_recipe.simclr_loss(first, second), nt_xent(*lengths, 0.3))
    encoder = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 32))
    projector, classifier = torch.nn.Linear(32, 16), torch.nn.Linear(32, 10)

    def view(batch):
        return batch + 0.3 * torch.randn_like(batch)

    def loss():
        return contrastive_recipe.simclr_loss(projector(encoder(view(x))), projector(encoder(view(x)))).item()

    before = loss()
    contrastive_recipe.train(encoder, projector, x, view, steps=100)
    assert loss() < before - 0.5
    contrastive_recipe.train(encoder, classifier, x, view, steps=300, y=y, weight=0.1)
    assert (classifier(encoder(x)).argmax(1) == y).double().mean() > 0.9


@pytest.mark.parametrize("softmax", [False, True])
def test_the_recipe_of_chapter_14_learns_steps(softmax):
    def sample(count=128):
        x, theta = torch.randn(count, 32, 4), torch.nn.functional.normalize(torch.randn(count, 4))
        x = x - x.mean(1, keepdim=True)
        return x, (x @ theta[..., None])[..., 0], theta

    def error():
        x, y, theta = sample(1000)
        return (model(x, y) - theta).square().sum(-1).mean().item()

    torch.manual_seed(0)
    model = loops.LoopedAttention(3, softmax)
    before = error()
    loops.train(model, sample, steps=200)
    assert error() < 0.4 * before and model.log_steps.std() > 0.1


@pytest.mark.parametrize("kind", ["Llama", "Mistral", "Qwen2", "Phi3", "Gemma"])
def test_the_recipe_of_chapter_15_answers_from_the_tokens_that_the_filter_layer_selects(kind):
    sizes = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "head_dim": 8}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.6}
    ends = {"bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0}
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**sizes, **ends)
    model = getattr(transformers, f"{kind}ForCausalLM")(config).double().eval()
    tokens = torch.randint(3, 50, (1, 40))
    for layer in range(3):
        text, kept = generate_from_gems(model, tokens, 12, layer, max_new_tokens=5)
        answer = token_selection.gem_filter(model, tokens, 5, 12, layer)
        assert torch.equal(kept, answer.kept[0]) and torch.equal(text[:, 12:], answer.tokens)
