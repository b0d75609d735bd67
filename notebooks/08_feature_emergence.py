# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Feature emergence from inputs
#
# > *A Theoretical Analysis on Feature Learning in Neural Networks: Emergence from Inputs and Advantage over Fixed Features*, Zhenmei Shi, Junyi Wei and Yingyu Liang ([Shi et al., 2022](../book/references.bib#shi2022emergence)); in full as chapter 2 and appendix A of Shi's thesis ([Shi, 2024](../book/references.bib#shi2024thesis)), which we follow.
#
# In the paper's model, inputs are sums of many patterns, and the label depends on how many of a few of them are present. If each of these few is equally correlated with the label and the other patterns are independent of it, the gradient of a two-layer network at its start is, up to a factor, nearly the mean of label times input, in which only the patterns that matter appear. Two steps on enough points turn the neurons into detectors of these patterns, while methods with features fixed beforehand need exponentially many of them, or exponentially large weights, for some parity. On uniform inputs a parity is correlated with no pattern, and the network does not learn it in our runs.
#
# <a id="fig-08-opening"></a>

# %% tags=["remove-input"]
from mvnb import figures

figures.opening()

# %% [markdown]
# Left: parity of five patterns among a hundred, learned by a network, by its tangent kernel and by random features; dashed, the same labels on uniform inputs. Right: histograms of the neurons' cosines with the sum of the five patterns, at the start and after the first two steps.
#
# Both halves are computed [further down](#08-experiments).

# %% tags=["parameters", "hide-input"]
seed = 0  # first seed: replica r is the run with seed + r (integer, 0 or more)
replicas = 4  # independent runs of every experiment, one stack each (2 or more)
device = "auto"  # "auto", "cpu" or "cuda"
n_patterns = 100  # patterns of the dictionary, D (above 30)
n_relevant = 5  # class-relevant patterns, k (3 or more, odd; reference lines are for 5)
ambient = 500  # dimension of the inputs, d (31 or more; n_patterns or more)
n_train = 16000  # training points (1000 or more)
n_test = 2000  # fresh points that judge a run (1000 or more)
n_pairs = 64  # pairs of neurons, m (8 or more)
steps = 300  # steps of the classifier stage, T (10 or more)
batch = 500  # points a step there (1 or more; up to n_train / 5)
tangent_replicas = 4  # runs of the tangent kernel (2 or more)
small_pairs = 50  # pairs of neurons in the variations (8 or more)
variation_replicas = 3  # runs of each variation (2 or more, at most replicas)
variation_steps = 250  # steps in the variations (10 or more)
law_replicas = 8  # runs of the law of noise and signal, and of code words (2 or more)
law_points = 10000  # points of its largest sample (1000 or more)
gaussian_points = 10000  # points of the Gaussian clusters (200 or more)
gaussian_epochs = 10  # passes over them; three times as many in 32 clusters (1 or more)
dataset = "mnist5k"  # real images: any name that mvnb.data.load_images knows
image_replicas = 6  # runs of every network on images (2 or more)
image_steps = 100  # steps of the two-layer network on images (1 or more)
filter_steps = 100  # steps of the convolutional network (50 or more)
teacher_epochs = 15  # passes of teachers and students over the images (1 or more)
teacher_width = 9  # hidden units of the teacher (1 or more)
student_widths = []  # widths of students of injected inputs, Figure A.22 (1 or more)

# %% tags=["hide-input"]
import math
from itertools import product

import matplotlib.pyplot as plt
import numpy as np
import torch
from scipy.spatial.distance import pdist, squareform
from sklearn.manifold import ClassicalMDS
from torch.nn import functional as F

from mvnb import claims, figures, losses, probes, training
from mvnb.data import GaussianMixture, load_images
from mvnb.models import SmallConvNet, TwoLayer, TwoLayerObjective, two_layer_outputs
from mvnb.papers.feature_emergence import measure, theory
from mvnb.papers.feature_emergence.data import (
    DictionaryData,
    PatternCodes,
    orthonormal_features,
)
from mvnb.papers.feature_emergence.tangent import (
    tangent_features,
    tangent_objective,
    tangent_outputs,
)

# %% tags=["hide-input", "check"]
figures.use_style()
ledger = claims.Ledger("feature_emergence")
device, seed = training.pick_device(device), training.fold_seed(seed)
print(f"device: {device.type}")
# What may be wrong with the parameters shows here, before anything is trained.
for name, value, most in (
    ("tangent_replicas", tangent_replicas, replicas),
    ("variation_replicas", variation_replicas, replicas),
    ("batch", batch, n_train // 5),
    ("n_patterns", n_patterns, ambient),
):
    if value > most:
        raise ValueError(f"{name} must be {most} at most here, got {value}")
images = load_images(dataset)  # an unknown name shows here, too
if not all(isinstance(width, int) for width in student_widths):
    raise ValueError(f"student_widths must be integers, got {student_widths}")
if n_relevant % 2 == 0:
    raise ValueError(f"n_relevant must be odd, got {n_relevant}")
world = DictionaryData.parity(n_patterns, n_relevant)
uniform = world.without_structure()
gamma = world.correlations[0]
BLUE, ORANGE, YELLOW = (figures.HUES[c] for c in ("blue", "orange", "yellow"))
COLOR = {"Network": BLUE, "Two steps": figures.HUES["sky"], "One step": ORANGE}
COLOR |= {k: figures.COLORS[k] for k in ("Tangent kernel", "Random features")}
THEORY, GREY = figures.COLORS["theory"], "#999999"


def streams(purpose, count=replicas):
    """A generator a replica, other ones for every purpose."""
    return training.generators(seed + 1_000_003 * purpose, count)


# %% [markdown]
# <a id="08-question"></a>
# ## The question: who tells the neurons where to look?
#
# A picture has millions of numbers and shows perhaps ten things, of which two decide what it is a picture of. A method whose features are chosen before it sees data, like the tangent kernel of [chapter 5](05_local_signal_adaptivity.ipynb), must be ready for every choice of these two. A network seems to pick them up on the way. Does it do so because gradient descent is clever, or because the *inputs* give them away?
#
# The smallest case that shows the difference has three patterns that count, among ten. A point is labelled $+1$ when one or all three of them are present, and $-1$ when none or two are: a parity. Take any input distribution, and average the input times its label. If patterns are fair coins, the average is zero, for every pattern, relevant or not. But if in half of the points the three patterns appear or are missing *together*, as parts of one object would, then each of them is more often seen with the label $+1$.
#
# **Predict before you look.** A network with small weights computes nearly nothing, so nearly all points are inside the margin. What does its first gradient look like in the two worlds?

# %%
tiny = DictionaryData.parity(10, 3)
means = {}
for name, one in (("structured", tiny), ("uniform", tiny.without_structure())):
    x, y = training.stack([one.sample(4000, g) for g in streams(1)])
    means[name] = (y[..., None] * x).mean(1).numpy()  # (replica, pattern)

# %% tags=["hide-input"]
fig, axes = plt.subplots(1, 2, figsize=(7.5, 2.6), sharey=True)
for ax, (name, mean) in zip(axes, means.items()):
    ax.bar(range(1, 11), mean.mean(0), color=[ORANGE] * 3 + [GREY] * 7)
    ax.plot(range(1, 11), mean.T, ".", color=THEORY, ms=3)
    ax.set(title=f"{name} inputs", xlabel="pattern", xticks=range(1, 11))
level = tiny.correlations[0] / tiny.scale
axes[0].axhline(level, **figures.LINES["theory"])
axes[0].annotate(r"$\gamma/\tilde\sigma$", (8.5, 1.05 * level))
axes[0].set_ylabel("mean of label times input")
figures.show(
    fig,
    title="The three patterns that count stand out, if the inputs have structure",
    alt="Two bar charts of the mean of label times input over ten patterns. With "
    "structured inputs the first three bars reach a line and the others are "
    "near zero; with uniform inputs all ten are near zero.",
)

# %% [markdown]
# The labels are the same function of the patterns in both panels. This chapter shows that the bars on the left are what a neuron becomes in one or two steps, and that the right panel is not a weakness of gradient descent but of every method that learns from averages.
#
# <a id="08-world"></a>
# ## The world: sums of patterns
#
# :::{prf:definition} Dictionary data
# :label: def-08-data
#
# $M\in\mathbb R^{d\times D}$ has orthonormal columns, the *patterns*. A hidden $\tilde\phi\in\{0,1\}^D$ says which are present. Of $D$ patterns $k$ are *class relevant*, $A\subset[D]$, and $P\subset\{1,\dots,k\}$ is a set of counts:
#
# $$
# \tilde x=M\tilde\phi,\qquad y=+1\ \text{ if }\ s:=\sum_{j\in A}\tilde\phi_j\in P,\qquad y=-1\ \text{ else.}
# $$ (eq-08-data)
#
# Inputs are normalised, $x=(\tilde x-\mathbb E\tilde x)/\tilde\sigma=M\phi$ with $\tilde\sigma^2=\mathbb E\|\tilde x-\mathbb E\tilde x\|^2$, so that $\mathbb E\|x\|^2=1$. *With input structure* means:
#
# - (A0) the classes are balanced;
# - (A1) every relevant pattern has the same correlation with the label, $\gamma=\mathbb E[y\tilde\phi_j]-\mathbb E[y]\,\mathbb E[\tilde\phi_j]>0$, $j\in A$;
# - (A2) the other patterns are independent Bernoulli($p_o$), $p_o\le\frac12$, and independent of $\tilde\phi_A$.
#
# *Without structure* all patterns are independent fair coins.
# :::
#
# The main example is a **parity**, $P$ the odd numbers and $k$ odd, with half of the points uniform and half of them with all relevant patterns present or all absent. In general, a share $p_o$ is uniform, and in the rest other patterns have probability $\frac{p_o}{2-2p_o}$, which keeps their marginal at $p_o$. Then
#
# $$
# \gamma=\frac{1-p_o}2,\qquad\tilde\sigma^2=\frac k4+(D-k)\,p_o(1-p_o),
# $$ (eq-08-moments)
#
# since uniform points contribute nothing to $\gamma$. The second example is an **interval**: relevant patterns are Bernoulli($\frac23$), $k=30$ and $P=\{20,\dots,30\}$, a half-space in disguise. For independent relevant patterns with probability $p$, with $S'\sim\mathrm{Bin}(k-1,p)$,
#
# $$
# \gamma=2p(1-p)\bigl(\Pr[S'+1\in P]-\Pr[S'\in P]\bigr).
# $$ (eq-08-gamma)
#
# In the package the relevant patterns come first, which is no loss, and points are drawn in pattern coordinates $\phi$. That is none either: weights are only ever added up from inputs, so that what lies outside the span of $M$ stays what it was, and is forgotten with the rest of the start.

# %%
# NBVAL_CHECK_OUTPUT
interval = DictionaryData.interval(n_patterns)
print("parity: gamma", round(world.correlations[0], 9), " scale", round(world.scale, 6))
k, p = 30, 2 / 3
inner = DictionaryData.independent(n_patterns, k - 1, range(20, 30), p).weights[0]
by_formula = 2 * p * (1 - p) * (inner[19] - 0)  # only the lower end is inside
print("interval: gamma", round(interval.correlations[0], 9), round(by_formula, 9))
for name, one in (("parity", world), ("interval", interval)):
    print(f"{name}, share of +1: {one.positive_share:.4f};", end=" ")
    print(f"without structure: {one.without_structure().positive_share:.4f}")
covariance = DictionaryData.parity(n_patterns, n_relevant, 0.25).other_covariance
print("covariance of two other patterns at p_o = 0.25:", round(covariance, 4))

# %% tags=["hide-input"]
x, y = world.sample(60, streams(2)[0], normalised=False)
fig, axes = plt.subplots(1, 3, figsize=(7.5, 3.0), width_ratios=(2.2, 1, 1))
absent = 1 - x[y.argsort(), :40]
axes[0].imshow(absent, cmap="gray", aspect="auto", vmin=-0.3, interpolation="none")
axes[0].axvline(n_relevant - 0.5, color=ORANGE)
split = int((y < 0).sum())
axes[0].axhline(split - 0.5, color=ORANGE, lw=1)
paper = {"boxstyle": "round", "fc": "white", "ec": "none"}
for sign, height in (("-", split - 4), ("+", split + 4)):
    axes[0].text(32, height, f"$y={sign}1$", color=ORANGE, va="center", bbox=paper)
axes[0].set(xlabel="pattern (first 40)", ylabel="point", title="sixty points")
axes[0].grid(False)
for ax, one, name in ((axes[1], world, "structured"), (axes[2], uniform, "uniform")):
    colors = np.where(one.labels > 0, BLUE, YELLOW)
    ax.bar(range(n_relevant + 1), one.weights.sum(0), color=colors)
    for s, (chance, label) in enumerate(zip(one.weights.sum(0), one.labels)):
        ax.text(s, chance + 0.01, "+" if label > 0 else "−", ha="center", fontsize=10)
    ax.set(title=name, xlabel="count $s$", ylim=(0, 0.37), xticks=range(n_relevant + 1))
axes[1].set_ylabel("probability")
figures.show(
    fig,
    title="Half of the points have all relevant patterns, or none",
    alt="Left, sixty points as rows of black and white cells; the first five columns "
    "are often all black or all white. Middle and right, the distribution of the count "
    "of relevant patterns: with structure 0 and 5 are the most frequent, without it 2 "
    "and 3.",
)

# %% [markdown]
# Two remarks on the conditions. The interval is not balanced (58 % and, without structure, 5 % positive), so it is outside (A0). And at $p_o<\frac12$ the mixture makes the other patterns correlated, by $\frac1{48}$ at $p_o=\frac14$, so that (A2) fails as stated; at $p_o=\frac12$, which all experiments use, both hold exactly.
#
# **Reference lines.** A method that gets the all-or-nothing half right and guesses on the rest has accuracy 0.75. The best threshold on the count has $\frac{27}{32}=0.84$ for $k=5$. Remember this number.
#
# <a id="08-model"></a>
# ## The model, and a schedule that forgets
#
# The network has $2m$ neurons, with a ReLU that is cut off at 1,
#
# $$
# g(x)=\sum_{i=1}^{2m}a_i\,\sigma(\langle w_i,x\rangle+b_i),\qquad\sigma(z)=\min(1,\max(0,z)),
# $$ (eq-08-model)
#
# and starts at $w_i\sim\mathcal N(0,\frac1{k^2}I)$, $b_i\sim\mathcal N(0,\frac1{k^4})$, $a_i\sim\mathcal N(0,\sigma_a^2)$, $\sigma_a=\frac{\tilde\sigma^2}{\gamma k^2}$, with neuron $m+i$ a copy of neuron $i$ with the opposite $a_i$. So $g\equiv0$ at first, and the hinge loss $\mathbb E\max(0,1-yg(x))$ is exactly 1. In the first two steps $\sigma$ is averaged over noise $\xi\sim\mathcal N(0,\sigma_\xi^2)$, $\sigma_\xi=k^{-3/2}$, inside the network. The average, written $\sigma_\xi(z)$, has a closed form: with $G(u)=u\,\Phi(u)+\varphi(u)$,
#
# $$
# \sigma_\xi(z)=\sigma_\xi\Bigl[G\bigl(\tfrac z{\sigma_\xi}\bigr)-G\bigl(\tfrac{z-1}{\sigma_\xi}\bigr)\Bigr],\qquad
# \sigma_\xi'(z)=\Phi\bigl(\tfrac z{\sigma_\xi}\bigr)-\Phi\bigl(\tfrac{z-1}{\sigma_\xi}\bigr).
# $$ (eq-08-smooth)
#
# Training descends the loss plus $\lambda_w\sum\|w_i\|^2+\lambda_a\sum a_i^2$ in three stages.
#
# | step | size $\eta$ | $\lambda_w$ | $\lambda_a$ | what it does |
# |---|---|---|---|---|
# | 1, all points | $\gamma^2\tilde\sigma/(km^3)$ | $1/(2\eta)$ | 0 | *emergence*: $w$ is forgotten, and becomes its gradient |
# | 2, all points | 1 | $\frac12$ | $\frac12$ | *improvement*: both are forgotten, $w$ becomes a cleaner gradient |
# | 3 to $T$, batches | small | small | small | *classifier*: features hardly move, $a$ is learned |
#
# Weight decay of $\frac1{2\eta}$ with no factor $\frac12$ in the penalty multiplies the old weight by exactly 0. It is also how the network leaves its tangent kernel behind: after one step nothing is left to be tangent to.
#
# :::{prf:lemma} The gradient
# :label: lem-08-gradient
#
# With $\mathbb I_x=\mathbb 1[yg(x)<1]$ and $z_i=\langle w_i,x\rangle+b_i$,
#
# $$
# \begin{gathered}
# \nabla_{w_i}L=-a_i\,\mathbb E\bigl[y\,\mathbb I_x\,\sigma_\xi'(z_i)\,x\bigr],\\
# \partial_{b_i}L=-a_i\,\mathbb E\bigl[y\,\mathbb I_x\,\sigma_\xi'(z_i)\bigr],\qquad
# \partial_{a_i}L=-\mathbb E\bigl[y\,\mathbb I_x\,\sigma_\xi(z_i)\bigr].
# \end{gathered}
# $$ (eq-08-gradient)
# :::
#
# :::{prf:proof}
# The hinge has slope $-y\,\mathbb I_x$ in the output, and the output has slopes $a_i\sigma_\xi'(z_i)x$, $a_i\sigma_\xi'(z_i)$ and $\sigma_\xi(z_i)$. At the start $\mathbb I_x=1$ for all points, because $g\equiv0$.
# :::
#
# The package takes exactly these, and the two steps in a form in which what is forgotten is never added in the first place. That is not a detail, as [we shall see](#08-float).

# %% tags=["remove-input"]
figures.show_code(theory.hinge_gradient)

# %% tags=["remove-input"]
figures.show_code(theory.first_steps)

# %%
# NBVAL_CHECK_OUTPUT
g = streams(3)[0]
start = theory.paired_start(6, 10, 3, 2.0, [g])
x, y = (part[None] for part in tiny.sample(200, g, torch.float64))
shifted = {**start, "a": start["a"] + 0.3}  # margins on both sides of 1
leaves = {k: v.clone().requires_grad_() for k, v in shifted.items()}
hidden, _ = theory.smoothed_clip(x @ leaves["w"].mT + leaves["b"][:, None], 0.2)
margin = y * (hidden @ leaves["a"][..., None])[..., 0]
(1 - margin).clamp(min=0).mean().backward()
_, by_hand = theory.hinge_gradient(shifted, x, y, 0.2)
error = max((by_hand[k] - leaf.grad).abs().max().item() for k, leaf in leaves.items())
print("gradients agree with autograd to 1e-12:", error < 1e-12)
network = TwoLayer(*(start[k][0] for k in "wba"), truncated=True)
print("output at the start is 0 to 1e-12:", network(x).abs().max().item() < 1e-12)

# %% [markdown]
# <a id="08-derivation"></a>
# ## The derivation, I: the first gradient
#
# :::{prf:lemma} The Hebbian mean
# :label: lem-08-hebb
#
# Under (A0)–(A2), $\mathbb E[yx]=\dfrac\gamma{\tilde\sigma}\sum_{j\in A}M_j$.
# :::
#
# :::{prf:proof}
# $\mathbb E[y\phi_j]=(\mathbb E[y\tilde\phi_j]-\mathbb E[y]\mathbb E[\tilde\phi_j]\,)/\tilde\sigma$ for every $j$, since $\phi_j=(\tilde\phi_j-\mathbb E\tilde\phi_j)/\tilde\sigma$. This is $\gamma/\tilde\sigma$ for $j\in A$ by (A1), and 0 for the others, which are independent of $y$ by (A2). Multiply by $M$.
# :::
#
# The first gradient is this mean with a *gate* $\sigma_\xi'(z_i)$ inside. The gate depends on $x$. But $z_i$ is a sum over $D$ patterns with random weights, and no small group of them decides whether it is positive. So the gate is nearly independent of $\phi_A$, and of any single $\phi_j$, and can be taken out:
#
# $$
# \nabla_{w_i}L\approx-a_i\,\beta_i\,\mathbb E[yx],\qquad
# \beta_i=\mathbb E[\sigma_\xi'(z_i)]\approx\Phi\Bigl(\frac{b_i}{\sqrt{\mathrm{Var}\langle w_i,x\rangle+\sigma_\xi^2}}\Bigr).
# $$ (eq-08-first)
#
# The thesis makes this precise with the Berry–Esseen theorem: the coefficient of $M_j$ deviates from $\beta\gamma/\tilde\sigma$ by at most $O(\epsilon_e/\tilde\sigma)$ for $j\in A$, and from 0 by at most $O(\sigma_\phi^2\epsilon_e\tilde\sigma)$ for the others, with $\sigma_\phi^2=\mathrm{Var}\,\phi_j$, where $\epsilon_e\sim k\sqrt{\log(Dm)}/\sqrt{\sigma_\phi^2\tilde\sigma^2(D-k)}$ falls with the number of other patterns (Lemmas A.9 to A.12, quoted without proof). The sign of $a_i$ decides whether a neuron turns towards $\sum_AM_j$ or away from it.
#
# ## The derivation, II: the second gradient is exact
#
# For the second step no theorem about sums of random variables is needed. After the first, $w_i$ is minute, and *the gate no longer depends on the input*.
#
# ::::{prf:theorem} The second step (ours, after Lemmas A.14 to A.16)
# :label: thm-08-second
#
# Let expectations be over any distribution, a sample for instance, and let the first step be as above. Write $w_i,b_i,a_i$ for what it leaves, $\beta_i=\sigma_\xi'(b_i)$, and $\rho_i=\max_x|\langle w_i,x\rangle|$. If $yg(x)<1$ at all points, the second step makes
#
# $$
# w_i^{(2)}=a_i\bigl(\beta_i\,\mathbb E[yx]+r_i\bigr),\qquad\|r_i\|\le\frac{\rho_i}{\sqrt{2\pi}\,\sigma_\xi}\,\mathbb E\|x\| .
# $$ (eq-08-second)
#
# Moreover $\rho_i\le\eta\,|a_i^{(0)}|\max_x\|x\|\,\mathbb E\|x\|$.
# ::::
#
# :::{prf:proof}
# At $w_i=0$ the gate would be the constant $\beta_i$ and could be taken out of the mean; the proof bounds how far a minute $w_i$ takes it from there. The old weight is forgotten, and $\mathbb I_x=1$, so by {eq}`eq-08-gradient` $w_i^{(2)}=a_i\mathbb E[y\,\sigma_\xi'(b_i+\langle w_i,x\rangle)\,x]$. The slope of $\sigma_\xi'$ is $\frac1{\sigma_\xi}[\varphi(\frac z{\sigma_\xi})-\varphi(\frac{z-1}{\sigma_\xi})]$, at most $\frac1{\sqrt{2\pi}\sigma_\xi}$ in absolute value. So the gate differs from $\beta_i$ by at most $\rho_i/(\sqrt{2\pi}\sigma_\xi)$ at every point, and $\|r_i\|\le\mathbb E|\sigma_\xi'-\beta_i|\,\|x\|$. For the last claim, $w_i=-\eta\nabla_{w_i}L$ and a gate is at most 1.
# :::
#
# The schedule's $\eta$ is about $10^{-7}$ here. A neuron with $\beta_i\lVert\mathbb E[yx]\rVert$ far above the bound on $\|r_i\|$ is therefore, after two steps, **nearly a multiple of the mean of label times input**. If all neurons meet this condition, as in our runs on the parity mixture, they are nearly the same vector up to length and sign, and the network has computed one linear statistic of its data. A neuron with a bias many $\sigma_\xi$ below 0 does not meet it, since $\beta_i\approx0$ there; and no neuron does if $\mathbb E[yx]=0$, as for a parity on the whole distribution of uniform inputs (on a sample of these, neurons turn to its noise). What makes the network more than a linear model afterwards is that neurons keep *different biases*, so that on top of one direction they offer a whole grid of kinks:
#
# :::{prf:lemma} Kinks along one direction are enough (Lemma 2.5)
# :label: lem-08-tents
#
# Let $\mu=\sum_A\mathbb E\tilde\phi_j$ and $w^*=\frac{\tilde\sigma}{4k}\sum_AM_j$. There are $3(k+1)$ pairs $(a_i,b_i)$ with $|a_i|\le32k$ and $\frac1{32k}\le|b_i|\le\frac12$ such that $\sum_ia_i\sigma(\langle w^*,x\rangle+b_i)=y$ at every point.
# :::
#
# :::{prf:proof}
# Along $w^*$ an input is nothing but its count $s$, and any function of $k+1$ counts is a sum of tents, one on each count, which are three ReLUs each. Indeed $\langle w^*,x\rangle=(s-\mu)/(4k)$. A tent $r(z+\frac12)-2r(z)+r(z-\frac12)$, $r$ the ReLU, is 0 outside $(-\frac12,\frac12)$ and $\frac12$ at 0, so $\sum_{p=0}^k2y_p\cdot\mathrm{tent}(s-p)$, with $y_p$ the label at count $p$, is the label. Its kinks are half-integers minus $\mu$. With $4\,\mathrm{tent}(s-p-\frac14)$ it is the label as well, as $\mathrm{tent}(-\frac14)=\frac14$, and the kinks are shifted by $\frac14$; so in one of the two all are at least $\frac18$ away from 0. Divide arguments by $4k$ and multiply by it outside. No argument exceeds 1, so that $r$ may be replaced by $\sigma$.
# :::

# %%
# NBVAL_CHECK_OUTPUT
runs = streams(4, 2)
sigma_a = theory.output_std(gamma, world.scale, n_relevant)
noise = n_relevant**-1.5
eta = theory.first_step_size(gamma, world.scale, n_relevant, n_pairs)
start = theory.paired_start(20, n_patterns, n_relevant, sigma_a, runs)
x, y = training.stack([world.sample(2000, g, torch.float64) for g in runs])
once, twice = theory.first_steps(start, x, y, eta, noise)
hebb = (y[..., None] * x).mean(1)
_, beta = theory.smoothed_clip(once["b"], noise)
rest = twice["w"] / once["a"][..., None] - beta[..., None] * hebb[:, None]
reach = (x @ once["w"].mT).abs().amax(1)
bound = reach * x.norm(dim=-1).mean(1, keepdim=True) / (np.sqrt(2 * np.pi) * noise)
inside, _ = theory.smoothed_clip(x @ once["w"].mT + once["b"][:, None], noise)
margin = y * (inside @ once["a"][..., None])[..., 0]
print("all margins below 1 after the first step:", bool((margin < 1).all()))
print("remainder within the bound:", bool((rest.norm(dim=-1) <= bound + 1e-15).all()))
print("bound, relative to beta |E[yx]|, below 1e-4:", end=" ")
print(bool((bound < 1e-4 * beta * hebb.norm(dim=-1, keepdim=True)).all()))
for labels in (world.labels, [-1, -1, -1, 1, 1, 1], [-1, 1, 1, -1, -1, 1]):
    a, b = theory.tent_network(labels, n_relevant / 2)
    count = np.arange(n_relevant + 1)[:, None] - n_relevant / 2
    output = (np.clip(count / (4 * n_relevant) + b, 0, 1) @ a).round(6).astype(int)
    print("tents give", output.tolist(), "for", np.array(labels).tolist())

# %% [markdown]
# ## The derivation, III: how many points it takes
#
# With $n$ points the Hebbian mean is a sample mean, $\widehat{\mathbb E}[yx]$. Along an irrelevant pattern it has mean 0 and variance $\mathrm{Var}(\phi_j)/n=p_o(1-p_o)/(n\tilde\sigma^2)$, exactly, because $y^2=1$. With {prf:ref}`lem-08-hebb` the length outside the relevant patterns over the length along them is, after step 2,
#
# $$
# \begin{gathered}
# \rho_2=\frac{\sqrt{(D-k)\,p_o(1-p_o)}}{\gamma\sqrt{kn}}\,(1+o(1)),\\
# \rho_1=\rho_2\cdot\frac{\sqrt{\mathbb E[\text{gate}^2]}}{\mathbb E[\text{gate}]},\qquad\cos=\frac1{\sqrt{1+\rho^2}} .
# \end{gathered}
# $$ (eq-08-noise)
#
# After step 1 the noise is larger by the last factor, because a gate that opens for half of the points throws away half of the sample: $\sqrt2$ for a sharp gate, and somewhat less with noise in it. This is the whole of the *improvement*, as long as the sample is what limits (at very large $n$ the dependence of the gate on $x$ remains). The formula also says that $n$ in proportion to $(D-k)/(k\gamma^2)$ suffices: *linear* in the number of patterns. It is ours; the thesis works with the population.
#
# ## The derivation, IV: what one step cannot do
#
# The direction is there after one step. Can a classifier on top of the features of step 1 do the job? The thesis reports 52 %. Here is what mathematics says.
#
# :::{prf:proposition} One step is a linear model (ours)
# :label: prop-08-one
#
# If $|\langle w_i,x\rangle|<\min(|b_i|,|1-b_i|)$ for all points and neurons, every function $\sum_ic_i\sigma(\langle w_i,x\rangle+b_i)$ is affine in $x$ on them, with a slope in the span of the $w_i$.
# :::
#
# :::{prf:proof}
# No point reaches a kink: $\sigma(\langle w_i,x\rangle+b_i)$ is 0 for $b_i<0$, $\langle w_i,x\rangle+b_i$ for $0<b_i<1$, and 1 for $b_i>1$.
# :::
#
# After the first step, weights are of size $10^{-8}$ and biases of size $\frac1{k^2}$, so the condition holds. In exact arithmetic no classifier on these features is then right on more than $\frac{27}{32}$ of the parity mixture ($k=5$, $p_o=\frac12$), whatever the directions of the $w_i$. Indeed, given the other patterns, the classifier is the sign $f$ of an affine function of the five bits $z_j=2\tilde\phi_j-1$, which is monotone in each of them. On the uniform half $|\mathbb E[f\prod_jz_j]|\le|\mathbb E[fz_j]|$ for every $j$, and the mean of the right-hand sides over $j$ is at most $\frac15\mathbb E|\sum_jz_j|=\frac38$, since $\sum_js_jz_j$ has the same distribution for all signs $s_j$. So $f$ is right on at most $\frac{22}{32}$ of this half, and at best on all of the other half. If the direction is right, the best threshold on the count attains this bound: *27/32, not 52 %, and not 100 %*. A classifier that takes the features as they are does not even get that far: an activation is 0.04 with a variation of $10^{-8}$ on top, and features that are constant up to a relative $10^{-6}$ are constants for any descent of reasonable length, in any precision. All that is missing is *scale*. Multiply $w_i$ until it is of the size of the biases, which changes no direction, and kinks fall between the counts.
#
# ## The derivation, V: what fixed features cannot do
#
# ::::{prf:theorem} Fixed features (Theorem 2.2)
# :label: thm-08-fixed
#
# Let $\Psi:\mathbb R^d\to\mathbb R^N$ not depend on $A$, $k$ odd, and $\mathcal E=\mathbb E\|\Psi\|^2$ on uniform points ($\mathcal E\le N$ for features in $[-1,1]$). On the parity mixture, the hinge loss of the best linear model $h=\langle\Psi,v\rangle$ with $\|v\|\le B$, on average over the choice of $A$ and so for at least one $A$, is at least
#
# $$
# p_o\Bigl(1-B\sqrt{\mathcal E\big/\tbinom Dk}\,\Bigr).
# $$ (eq-08-fixed)
# ::::
#
# ::::{prf:proof}
# To predict a parity, features must be correlated with it; but there are $\binom Dk$ orthonormal parities, and the squared correlations of one feature with all of them add up to no more than its second moment. The loss is not negative; count only the share $p_o$ of uniform points. (Features are taken of $\tilde x$; at $p_o=\frac12$ those of $x$ are, too, because the mean that is subtracted is then the same for all $A$.) There $y=\chi_A(\tilde\phi)$ up to a common sign, with the parity $\chi_A=\prod_{j\in A}(2\tilde\phi_j-1)$. The hinge is at least $1-yh$, so its mean there is at least $1-|\langle\mathbb E[\chi_A\Psi],v\rangle|\ge1-B\,\|\mathbb E[\chi_A\Psi]\|$. The $\binom Dk$ parities are orthonormal on the uniform cube, and by Bessel's inequality
#
# $$
# \sum_{|A|=k}\|\mathbb E[\chi_A\Psi]\|^2=\sum_{i=1}^N\sum_{|A|=k}\mathbb E[\chi_A\Psi_i]^2\le\sum_{i=1}^N\mathbb E[\Psi_i^2]=\mathcal E .
# $$
#
# So the mean of $\|\mathbb E[\chi_A\Psi]\|$ over $A$ is at most $\sqrt{\mathcal E/\binom Dk}$ (Jensen).
# ::::
#
# The thesis quotes $p_o(1-\sqrt{2N}B/2^k)$, with $B$ under the root by a slip. The self-contained version is stronger by far, since $\binom Dk\ge16^k$ in its range $k\le D/16$, and it will turn out to speak about the experiments, where the printed one is below zero. When features are random and symmetric, as at the start of our network, no $A$ is preferred, and the average over $A$ is the average over starts. For shift-invariant kernels a bound of the printed kind follows by random Fourier features (Corollary 2.3). And the parity of *uniform* inputs is hard for every algorithm that works with averages:
#
# :::{prf:theorem} No structure (Theorem 2.4, quoted)
# :label: thm-08-sq
#
# A statistical-query algorithm that learns the parities of uniform inputs to error below $\frac12-\binom Dk^{-3}$ needs at least $\frac12\binom Dk^{1/3}$ queries, or queries of a tolerance below the inverse of that.
# :::
#
# It follows from [Blum et al. (1994)](../book/references.bib#blum1994weakly), because $\binom Dk$ parities are pairwise uncorrelated. A gradient on a sample is a batch of statistical queries. At $D=100$ and $k=5$ the bound is 211 queries, which is nothing; at $k=21$ it is $6\cdot10^6$.

# %%
# NBVAL_CHECK_OUTPUT
cube = torch.tensor(list(product([-1.0, 1.0], repeat=10)), dtype=torch.float64)
sets = torch.combinations(torch.arange(10), 3)
parities = cube[:, sets].prod(-1)  # (point, A)
same = torch.allclose(parities.T @ parities / 1024, torch.eye(len(sets)).double())
print("parities are orthonormal:", same)
bessel = []
for g in streams(5):
    w = torch.randn(10, 20, generator=g, dtype=torch.float64)
    features = (cube @ w / 3 + 0.2).clamp(0, 1)  # 20 random features of our network
    alignment = (parities.T @ features / 1024).norm(dim=1)
    bessel.append((alignment.square().sum() / 20, alignment.min() * (120 / 20) ** 0.5))
print("sum below N, worst A below its share:", bool(max(map(max, bessel)) <= 1))
print("statistical queries, k = 5 and 21:", end=" ")
print(round(theory.queries_needed(100, 5)), f"{theory.queries_needed(100, 21):.0e}")

# %% tags=["hide-input"]
fig, ax = plt.subplots(figsize=(7.5, 2.9))
ks = np.arange(1, 22, 2)
for norm, style in ((10, "-"), (1000, "--")):
    ours = [theory.fixed_feature_bound(200, norm, n_patterns, k, 0.5) for k in ks]
    printed = [theory.printed_feature_bound(200, norm, k, 0.5) for k in ks]
    ax.plot(ks, np.maximum(ours, 0), style, color=BLUE)
    ax.plot(ks, np.maximum(printed, 0), style, color=ORANGE)
ax.axvline(n_relevant, color=GREY, lw=1)
ax.annotate("the experiments", (n_relevant + 0.15, 0.535), color="#555555")
ax.annotate("Bessel,\n$B=10$", (0.9, 0.39), color=BLUE)
ax.annotate("$B=1000$", (5.75, 0.09), color=BLUE, fontsize=10)
ax.annotate("with $2^k$,\nas printed", (10.6, 0.2), color=ORANGE)
ax.set(xlabel="relevant patterns, $k$", ylabel="hinge loss at least", xticks=ks)
ax.set_ylim(-0.03, 0.59)
ax.set_title("With Bessel's inequality the bound begins where experiments are")
figures.show(
    fig,
    alt="Lower bounds of the hinge loss of 200 fixed features over k, for two norms. "
    "The printed bounds are zero until k is 9 or 15 and then rise to one half; those "
    "by Bessel's inequality rise at k from 3 to 7. A line marks k = 5, as run here.",
)

# %% tags=["remove-cell"]
ledger.exact("fixed-features-bessel", sum(bool(max(pair) > 1) for pair in bessel))

# %% [markdown]
# <a id="08-experiments"></a>
# ## The experiments
#
# ### Two steps (Figure 2.2)
#
# *What the paper did:* $d=500$, $D=100$, $k=5$, $p_o=\frac12$, $m=300$, 50,000 points; weights before training, after one step and after two, mapped to the plane by multidimensional scaling of their cosines. *What is done here:* the same with fewer points and neurons. Classes are weighted to have equal mass in the sample, as in the thesis's general setting (appendix A.8): a difference of a percent matters, as we shall see below.


# %%
def equal_classes(y):
    """Weights of points that give both classes of a sample half of the mass."""
    positive = (y > 0).float().mean(-1, keepdim=True)
    return torch.where(y > 0, 0.5 / positive, 0.5 / (1 - positive))


def emergence(x, y, like, pairs, runs, weighted=True):
    """Networks at the start, after one and after two steps of the schedule."""
    k, (gamma, _), dim = like.n_relevant, like.correlations, x.shape[-1]
    output_std = theory.output_std(gamma, like.scale, k)
    eta = theory.first_step_size(gamma, like.scale, k, pairs)
    start = theory.paired_start(pairs, dim, k, output_std, runs, torch.float32)
    start = {name: v.to(x.device) for name, v in start.items()}
    weight = equal_classes(y) if weighted else None
    return start, *theory.first_steps(start, x, y, eta, k**-1.5, weight=weight)


def draw(one, n, runs):
    """A stack of samples on the device."""
    return training.to_device(training.stack([one.sample(n, g) for g in runs]), device)


# %%
relevant = (torch.arange(n_patterns) < n_relevant).double().to(device)
runs = streams(10)
train, test = draw(world, n_train, runs), draw(world, n_test, runs)
stages = emergence(*train, world, n_pairs, runs)
cosines = [probes.cosines(one["w"], relevant).cpu() for one in stages]
medians = torch.stack([c.abs().median(1).values for c in cosines])
print("median |cos| at the start, after one step, after two:", end=" ")
print(*(f"{mean:.4f}" for mean in medians.mean(1)))


# %% tags=["hide-input"]
def draw_plane(ax, w, star, sign):
    """Neurons and plus and minus the star in a plane, by the angles between them."""
    unit = F.normalize(torch.cat([w.double(), star[None], -star[None]]), eps=0, dim=1)
    distance = squareform(pdist(unit.numpy()))
    points = ClassicalMDS(metric="precomputed").fit_transform(distance)
    ax.plot(*points[-2:].T, "*", color="none", mec=THEORY, ms=22)
    positive = sign == 1
    # Rings, so that a neuron shows round its copy of the opposite sign at the start.
    ax.plot(*points[:-2][positive].T, "o", mec=BLUE, mfc="none", ms=7, alpha=0.7)
    ax.plot(*points[:-2][~positive].T, "s", color=ORANGE, ms=3.5, alpha=0.5)
    ax.set(xticks=[], yticks=[], xlim=(-1.35, 1.35), ylim=(-1.35, 1.35))


# %% tags=["hide-input"]
index = torch.cat([torch.arange(50), n_pairs + torch.arange(50)]) % (2 * n_pairs)
fig, axes = plt.subplots(1, 3, figsize=(7.5, 2.7))
for ax, one, name in zip(axes, stages, ("start", "after one step", "after two steps")):
    sign = stages[0]["a"][0, index].sign().cpu().numpy()
    draw_plane(ax, one["w"][0, index].cpu(), relevant.cpu(), sign)
    ax.set_title(name)
figures.show(
    fig,
    title="One step turns neurons to the patterns that count, by the sign of $a_i$",
    alt="Three maps of weights. At the start a cloud. After one step rings sit at "
    "one star and squares at the other, with small spread; after two it is gone.",
)

# %% tags=["remove-cell"]
ledger.mean("two-steps-find-the-patterns", cosines[2].amax(1))
ledger.mean("one-step-turns-neurons", start=medians[0], after=medians[1])
positive = stages[0]["a"].cpu() > 0
agree = [((c > 0) == positive).double().mean(1) for c in cosines[1:]]
ledger.mean("output-sign-decides-the-cluster", torch.stack(agree).amin(0))
pairwise = torch.stack([probes.cosines(w, w[0]).abs().min() for w in stages[2]["w"]])
ledger.mean("second-step-collinear", (1 - pairwise).cpu())

# %% [markdown]
# ### Emergence and improvement, with a law (ours)
#
# How clean are the two gradients? *Prediction:* {eq}`eq-08-noise`, with no free constant, for $n$ from a few hundred to all points.

# %%
sizes = [law_points // part for part in (20, 10, 5, 2, 1)]
runs = streams(11, law_replicas)
x, y = draw(world, sizes[-1], runs)
ratios = []  # (size, step, replica)
others = n_patterns - n_relevant
for n in sizes:
    _, *both = emergence(x[:, :n], y[:, :n], world, 25, runs)
    parts = [one["w"].split((n_relevant, others), -1) for one in both]
    lengths = [[part.double().norm(dim=-1) for part in one] for one in parts]
    ratios.append([(b / a).median(1).values.cpu().numpy() for a, b in lengths])
ratios = np.array(ratios)
variance = (1 - n_relevant / 4 / world.scale**2) / n_relevant**2  # of <w, other part>
gate = theory.gate_moments(0.0, variance, noise)
known = (np.array(sizes), n_relevant, others, 0.5, gamma)
law = [theory.noise_to_signal(*known, moments) for moments in (gate, (1.0, 1.0))]
error = ratios / np.transpose(law)[..., None] - 1

# %% tags=["hide-input"]
fig, ax = plt.subplots(figsize=(7.5, 3.1))
for step, (name, lift, va, ha) in enumerate(
    (("One step", 1.15, "bottom", "left"), ("Two steps", 0.8, "top", "right"))
):
    color, at = COLOR[name], (sizes[2], law[step][2] * lift)
    ax.plot(sizes, law[step], color=color)
    ax.plot(sizes, ratios[:, step], ".", color=color, ms=4, alpha=0.6)
    ax.plot(sizes, ratios[:, step].mean(1), "o", color=color, ms=7, mec="white")
    ax.annotate(f"after {name.lower()}", at, color=color, va=va, ha=ha)
ax.set(xscale="log", yscale="log", xlabel="training points, $n$")
ax.set_ylabel(r"noise over signal, $\rho$")
ax.set_title("Noise falls as the law says, and the second step is cleaner")
figures.show(
    fig,
    alt="Noise over signal against the number of points on logarithmic axes. Two "
    "parallel lines of slope minus one half; dots of eight runs lie on them, those of "
    "the second step a quarter lower.",
)

# %% tags=["remove-cell"]
factor = ratios[:, 0] / ratios[:, 1]  # (size, replica)
ledger.mean("improvement", least=factor.min(0), factor=factor[-1])
ledger.mean("noise-law", least=error.min((0, 1)), most=error.max((0, 1)))

# %% [markdown]
# ### The main table (Figure 2.1, Table A.1)
#
# Six methods with the same start, the same points and the same number of steps.
#
# - *Network*: two steps, then the classifier stage on all parameters.
# - *Two steps*, *one step*: features frozen there, then $a$ alone.
# - *Random features*: frozen at the start.
# - *Tangent kernel*: the network linearised at its start, with all its features trained. There are $2m(D+2)$ of them, but those of the second neuron of a pair are those of the first, or minus them, so that half are enough.
# - *Network on uniform inputs*: the same labels without structure.
#
# In the last stage the thesis's step size $k^2/(Tm^{1/3})$ is for proofs, and so small that *we predict* it to stop at the threshold plateau of 0.84 (a run with it is below). We use Adam with a step that falls linearly to 0, and in units: a step moves features by a few percent of their size at most (the thesis's third stage hardly moves them, either), and output weights in proportion to the inverse of that size.


# %%
def hidden_units(params, x):
    """Activations (replica, point, neuron)."""
    return torch.baddbmm(params["b"][:, None], x, params["w"].mT).clamp_(0, 1)


def cyclic(parts, size):
    """The sample in batches, in its own (random) order, again and again."""
    count = parts[0].shape[1] // size
    return lambda step: tuple(p[:, step % count * size :][:, :size] for p in parts)


def in_units(objective, units):
    """The same loss in parameters measured in units."""

    def measured(params, *batch):
        losses, slope = objective({k: v * units[k] for k, v in params.items()}, *batch)
        return losses, {k: g * units[k] for k, g in slope.items()}

    return measured


def falling(step_size, steps):
    """Adam with a step that falls linearly to 0."""
    return training.Adam(lambda t: step_size * (1 - t / steps))


def outputs(params, x):
    """Values (replica, point) of the networks."""
    return (hidden_units(params, x) @ params["a"][..., None])[..., 0]


def hits(output, y):
    """Accuracy (replica,) of outputs; an output of 0 is never right."""
    return (output * y > 0).double().mean(-1)


# %%
def train_network(params, train, test, steps, looks=20):
    """The classifier stage on all parameters."""
    size = hidden_units(params, train[0][:, :2000]).square().mean().sqrt().item()
    units = {"w": 0.01 * size, "b": 0.01 * size, "a": 1 / size}

    def judge(params):
        now = {k: v * units[k] for k, v in params.items()}
        return hits(outputs(now, test[0]), test[1])

    run = training.fit(
        in_units(TwoLayerObjective("hinge", truncated=True), units),
        {k: v / units[k] for k, v in params.items()},
        cyclic(train, min(batch, train[0].shape[1] // 5)),
        steps=steps,
        optimizer=falling(0.3, steps),
        probes={"test": judge},
        log_at=training.log_steps(steps, looks),
    )
    run.params = {k: v * units[k] for k, v in run.params.items()}
    run.log["train"] = hits(outputs(run.params, train[0]), train[1]).cpu()
    return run


# %%
def head_objective(params, hidden, y):
    """Hinge loss of a linear classifier, and its gradient."""
    margin = y * (params["a"][:, None] @ hidden.mT)[:, 0]
    push = -y * (margin < 1) / y.shape[1]
    return (1 - margin).clamp(min=0).mean(1), {"a": (push[:, None] @ hidden)[:, 0]}


def train_head(features, train, test, steps, looks=20):
    """A linear classifier on frozen features, which are scaled to mean square 1."""
    hidden, hidden_test = features(train[0]), features(test[0])
    train, test = ((x, y.to(hidden.dtype)) for x, y in (train, test))
    size = hidden.square().mean((1, 2), keepdim=True).sqrt()
    hidden, hidden_test = hidden.div_(size), hidden_test.div_(size)
    judge = lambda p, x, y: hits((x @ p["a"][..., None])[..., 0], y)
    run = training.fit(
        head_objective,
        {"a": torch.zeros_like(hidden[:, 0])},
        cyclic((hidden, train[1]), min(batch, len(hidden[0]) // 5)),
        steps=steps,
        optimizer=falling(0.3, steps),
        probes={"test": lambda p: judge(p, hidden_test, test[1])},
        log_at=training.log_steps(steps, looks),
    )
    run.log["train"] = judge(run.params, hidden, train[1]).cpu()
    run.log["fresh loss"] = head_objective(run.params, hidden_test, test[1])[0].cpu()
    run.log["norm"] = (run.params["a"].norm(dim=1) / size[:, 0, 0]).cpu()
    return run


# %%
def train_tangent(half, train, test, steps, size=0.01, count=tangent_replicas):
    """The tangent kernel's features a gate(z) x, a gate(z) and clip(z), trained."""
    start = {k: v[:count] for k, v in half.items()}

    def parts(x, y):
        return x[:count], y[:count], *tangent_features(start, x[:count])

    seen, fresh = parts(*train), parts(*test)
    judge = lambda p, part: hits(tangent_outputs(p, part[0], *part[2:]), part[1])
    run = training.fit(
        tangent_objective,
        {k: torch.zeros_like(v) for k, v in start.items()},
        cyclic(seen, min(batch, train[0].shape[1] // 5)),
        steps=steps,
        optimizer=falling(size, steps),
        probes={"test": lambda p: judge(p, fresh)},
        log_at=training.log_steps(steps, 12),
    )
    run.log["train"] = judge(run.params, seen).cpu()
    run.log["fresh loss"] = tangent_objective(run.params, *fresh)[0].cpu()
    run.log["norm"] = probes.parameter_norm(run.params).cpu()
    return run


# %%
def rescaled(once, twice):
    """First-step directions with the lengths that the second step has."""
    first, second = (one["w"].norm(dim=-1, keepdim=True) for one in (once, twice))
    return {**once, "w": once["w"] * (second / first)}


def frozen(params):
    """The activations of these neurons, as a function of inputs."""
    return lambda x: hidden_units(params, x)


def one_of_each_pair(start):
    """Half of the neurons; at the start the others have the same features, or minus."""
    return {k: v[:, : v.shape[1] // 2] for k, v in start.items()}


def train_methods(names, stages, train, test, steps, looks=20, size=0.01):
    """Runs of these methods, by name; size is the step of the tangent kernel."""
    start, once, twice = stages
    half, seen = one_of_each_pair(start), (train, test, steps)
    heads = {"Random features": half, "One step": once, "Two steps": twice}
    heads["One step, longer"] = rescaled(once, twice)
    runs = {}
    for name in names:
        if name in heads:
            runs[name] = train_head(frozen(heads[name]), *seen, looks)
        elif name == "Network":
            runs[name] = train_network(twice, *seen, looks)
        else:
            runs[name] = train_tangent(half, *seen, size)
    return runs


# %%
four = ("Network", "Tangent kernel", "Random features", "Two steps")
six = (*four, "One step", "One step, longer")
structured = train_methods(six, stages, train, test, steps)
runs = streams(12)
train_uniform, test_uniform = draw(uniform, n_train, runs), draw(uniform, n_test, runs)
stages_uniform = emergence(*train_uniform, world, n_pairs, runs)
unstructured = train_methods(four, stages_uniform, train_uniform, test_uniform, steps)


def final(run, name="test"):
    """Accuracy of every replica at the end."""
    return run.log[name][-1].numpy() if name == "test" else run.log[name].numpy()


def summary(runs):
    """Mean accuracies on training points and fresh ones, a line a method."""
    for name, run in runs.items():
        seen, fresh = (final(run, part).mean() for part in ("train", "test"))
        print(f"  {name:17s} {seen:.3f} {fresh:.3f}")


for name, runs in (("with", structured), ("without", unstructured)):
    print(f"{name} structure: train, test")
    summary(runs)

# %% tags=["hide-input"]
rows = [["accuracy", n] for n in ("at the start", "after step 1", "after step 2")]
fig, axes = plt.subplot_mosaic(rows, figsize=(6.5, 3.5), width_ratios=(1.5, 1))
ax = axes.pop("accuracy")
heights = {"Network": 0.955, "Tangent kernel": 0.63, "Random features": 0.79}
for name, height in heights.items():
    for group, style in ((structured, "-"), (unstructured, "--")):
        log = group[name].log["test"]
        ax.plot(group[name].steps, log, style, color=COLOR[name], lw=1, alpha=0.8)
    ax.annotate(name, (0.28 * steps, height), color=COLOR[name])
plateau = theory.threshold_accuracy(world.weights.sum(0), world.labels)
for level, name in ((plateau, "best threshold on the count"), (0.75, "")):
    ax.axhline(level, color=THEORY, lw=1, ls=":")
    ax.annotate(name, (0.28 * steps, level + 0.012), fontsize=11, color="#555555")
ax.annotate("all, on uniform inputs", (0.28 * steps, 0.535), color="#555555")
ax.set(xlabel="step of the last stage", ylabel="test accuracy", ylim=(0.43, 1.03))
for (name, below), cosine in zip(axes.items(), cosines):
    below.hist(cosine.flatten(), bins=np.linspace(-1, 1, 42), color=BLUE)
    below.set(yticks=[], xticks=[-1, 0, 1], xlim=(-1.05, 1.05))
    below.set_title(name, fontsize=11)
    below.tick_params(labelbottom=name == rows[-1][1])
below.set_xlabel("cosine with the patterns")
figures.show(
    fig,
    title="The network finds five patterns of a hundred; fixed features do not",
    alt="Left, test accuracy over steps. The network rises to one, tangent kernel and "
    "random features stay at about three quarters, and dashed lines for uniform inputs "
    "stay at one half. Right, histograms of the cosine between neurons and the five "
    "patterns: around zero at the start, at minus and plus one after two steps.",
    opening=True,
)

# %% tags=["remove-cell"]
for name, id in (
    ("Network", "network-learns-parity"),
    ("Two steps", "two-steps-learn-parity"),
    ("Random features", "random-features-stay-behind"),
    ("Tangent kernel", "tangent-kernel-stays-behind"),
):
    ledger.mean(id, 100 * final(structured[name]))
right = {name: 100 * final(run)[:tangent_replicas] for name, run in structured.items()}
fixed = np.maximum(right["Random features"], right["Tangent kernel"])
ledger.mean("network-ahead-of-fixed-features", right["Network"] - fixed)
same = slice(tangent_replicas)
chance = 100 * np.array([final(run)[same] for run in unstructured.values()])
ledger.mean("no-structure-no-learning", best=chance.max(0), worst=chance.min(0))

# %%
# Uniform inputs again: the thesis's weights per point (of D patterns), and its passes.
per_point, passes = 600 * (100 + 2) / 50_000, 600 * 1000 / 50_000
n_fitted = min(n_train, round(2 * n_pairs * (n_patterns + 2) / per_point))
part = [one[:, :n_fitted] for one in train_uniform]
small_batch = min(batch, n_fitted // 5)
fitted_steps = math.ceil(passes * n_fitted / small_batch)
*_, fitted_start = emergence(*part, world, n_pairs, streams(12))
memorised = []  # (step size, replica)
for step_size in (0.03, 0.1, 0.3):
    params = training.fit(
        TwoLayerObjective("hinge", truncated=True),
        fitted_start,
        cyclic(part, small_batch),
        steps=fitted_steps,
        optimizer=falling(step_size, fitted_steps),
    ).params
    memorised.append(hits(outputs(params, part[0]), part[1]).cpu().numpy())
memorised = 100 * np.array(memorised)
print(f"{n_fitted} uniform points in {fitted_steps} steps, fitted (by chance 50 %):")
print(memorised.mean(1).round(1), "% at step sizes of 0.03, 0.1 and 0.3")

# %% tags=["remove-cell"]
ledger.mean("no-structure-memorised", memorised.max(0))

# %%
# The third stage as the thesis has it: plain descent with step k^2 / (T m^(1/3)).
few = slice(variation_replicas)
printed_stage = training.fit(
    TwoLayerObjective("hinge", truncated=True),
    {k: v[few] for k, v in stages[2].items()},
    cyclic([part[few] for part in train], batch),
    steps=steps,
    optimizer=training.SGD(n_relevant**2 / steps / n_pairs ** (1 / 3)),
).params
printed_right = hits(outputs(printed_stage, test[0][few]), test[1][few]).cpu().numpy()
print("test accuracy with the printed third stage:", printed_right.round(3))

# %% tags=["remove-cell"]
ledger.mean("printed-third-stage-stalls", 100 * printed_right)

# %% [markdown]
# The order is the paper's. Random features sit at the first reference line: they solve the half of the points with all patterns or none. The tangent kernel does about as well here on fresh points, and better in the paper, where it has nearly five times as many neurons and three times as many points. With its own step size the third stage stops at the best threshold. Without structure the network is at chance on fresh points, as the paper's is. The paper's fits its training points; ours, whose features hardly move in the last stage, does not. With steps of Adam that do move features, as many weights a point and as many passes as in the paper, it fits more of them than chance, and not all. The thesis does not give its step size.
#
# **Does the lower bound explain the gap?** Here is {prf:ref}`thm-08-fixed` with the $B$ that the trained models have, and the energy that their features have on uniform points, beside their hinge loss on fresh points.


# %%
def energies(start, x):
    """E |Psi|^2 of random features and of the tangent kernel's, (replica,) each."""
    z = torch.baddbmm(start["b"][:, None], x, start["w"].mT)
    hidden, gate = z.clamp(0, 1).square(), ((z > 0) & (z < 1)).to(z.dtype)
    scaled = (gate * start["a"][:, None].square()).sum(-1)
    tangent = scaled * (1 + x.square().sum(-1)) + hidden.sum(-1)
    return hidden.sum(-1).mean(1).cpu().numpy(), tangent.mean(1).cpu().numpy()


own = energies(one_of_each_pair(stages[0]), draw(uniform, n_test, streams(15))[0])
bound_table = {}
for name, energy in zip(("Random features", "Tangent kernel"), own):
    log = structured[name].log
    norm, loss = (log[part].numpy() for part in ("norm", "fresh loss"))
    known = (norm, n_patterns, n_relevant, 0.5)
    bound = theory.fixed_feature_bound(energy[: len(norm)], *known)
    bound_table[name] = (bound, loss)
    print(f"{name}: B {norm.mean():.0f}, loss {loss.mean():.3f} >= {bound.mean():.3f}")

# %% tags=["remove-cell"]
ids = ("random-features-above-the-bound", "tangent-kernel-above-the-bound")
for id, (bound, loss) in zip(ids, bound_table.values()):
    ledger.mean(id, excess=loss - bound, bound=bound)

# %% [markdown]
# It does. With weights of that length *no* linear model on these features, however trained, has a loss much below $\frac12$, the share of the uniform points, and to halve it weights must be some twenty times as long for the tangent kernel, and hundreds of times for random features. The trained models are not far above. (The printed constant gives less than zero for both.) The bound is about the loss; that accuracy stops where it does is what the runs show. The *upper* bound is far from these runs: Theorem 2.1 asks for $m\ge k^{12}$, which is $2\cdot10^8$ neurons.
#
# <a id="08-float"></a>
# ### What the 52 % of One Step means
#
# The paper reads the low accuracy on top of the first step's features as: the first step finds the direction, but not well enough. By {prf:ref}`prop-08-one` the direction has nothing to do with it. *Prediction:* the same features, the same classifier and the same number of steps give the share of the larger class as they are, in float32 and in float64; $\frac{27}{32}$ when activations are standardised, neuron by neuron, in float64; and everything when weights are scaled up to the lengths they have after step 2.


# %%
def standardised(features, x):
    """Features in float64, every neuron with mean 0 and deviation 1 on a sample."""
    seen = features(x).double()
    mean, std = seen.mean(1, keepdim=True), seen.std(1, keepdim=True)

    def scaled(x):
        h = features(x).double().sub_(mean).div_(std.clamp(min=1e-300))
        return h.mul_(std > 0)  # dead neurons stay silent

    return scaled


_, once, twice = stages
half, fresh = [p[few, : n_train // 2] for p in train], [p[few] for p in test]
once = {k: v[few] for k, v in once.items()}
raw, precise = frozen(once), {k: v.double() for k, v in once.items()}
makers = {"float32": raw, "float64": lambda x: hidden_units(precise, x.double())}
outcomes = {"as it is, float32": structured["One step"]}
outcomes["as it is, float64"] = train_head(makers["float64"], half, fresh, steps)
for name in ("float64", "float32"):
    features = standardised(makers[name], half[0])
    outcomes[f"standardised, {name}"] = train_head(features, half, fresh, steps)
outcomes["weights scaled up"] = structured["One step, longer"]
outcomes["second step"] = structured["Two steps"]
# What the threshold itself gets right on the same fresh points:
threshold = hits(test[0][..., :n_relevant].sum(-1), test[1]).cpu().numpy()

# %%
# In float32 the differences are a few last places.
activations = makers["float64"](half[0])
active = activations.amax(1) > 0
varies = activations.amax(1) - activations.amin(1)
varies = (varies / activations.amax(1).clamp(min=1e-30))[active].median().item()
print(f"an activation varies by 1e{math.log10(varies):.0f} of itself")
for name, run in outcomes.items():
    print(f"  {name:22s} {final(run).mean():.3f}")

# %% tags=["hide-input"]
fig, ax = plt.subplots(figsize=(7.5, 3.0))
reached = {name: final(run) for name, run in outcomes.items()}
colors = [COLOR["One step"]] * (len(reached) - 1) + [COLOR["Two steps"]]
figures.runs(ax, reached, colors, horizontal=True, summary=None, size=6)
for level, name in ((0.5, "larger class"), (plateau, "best threshold, 27/32"), (1, "")):
    ax.axvline(level, color=THEORY, lw=1, ls=":")
    ax.annotate(name, (level + 0.005, -0.55), fontsize=9, color="#555555")
ax.set(xlabel="test accuracy", ylim=(len(outcomes) - 0.5, -0.8), xlim=(0.45, 1.03))
ax.set_title("One direction, and three answers")
figures.show(
    fig,
    alt="Test accuracies of classifiers on first-step features. As they are, one half "
    "in either precision; standardised in float64, at the best threshold, 0.84; "
    "standardised after rounding to float32, about one; with weights scaled up, one, "
    "like the second step.",
)

# %% tags=["remove-cell"]
for id, key in (
    ("one-step-raw-is-a-constant", "as it is, float32"),
    ("one-step-raw-in-float64", "as it is, float64"),
    ("one-step-scaled-is-enough", "weights scaled up"),
):
    ledger.mean(id, 100 * final(outcomes[key]))
exact = final(outcomes["standardised, float64"]) - threshold[few]
ledger.mean("one-step-exact-is-a-threshold", 100 * exact)

# %% [markdown]
# (The fourth row is a curiosity. Rounded to float32, activations are stairs of a few units in the last place, and stairs have kinks: standardised, the rounding errors of many neurons learn the parity that the exact features cannot.)
#
# So "one step finds the direction, the second improves it, and then a classifier can be learned" is right about the directions and misleading about the classifier. The second step is needed because its step size is 1. The printed numbers agree with this: One Step has 50 to 52 % where classes are balanced, 41.0 % in the interval example, where 41.5 % are negative, and 75.7 % and 89.2 % at class ratios of 0.8 and 0.9.
#
# ### What float32 does to forgetting
#
# There is a second trap of scale. Weight decay as an optimizer does it computes $w-\eta(\nabla+2\lambda w)$ with $2\lambda=1/\eta$: it subtracts from $w$ a number that is $w$ up to rounding, and what is left is the rounding error, about $10^{-8}\|w\|$, plus the gradient step, $\eta\|\nabla\|$, which may be smaller. $\|w^{(0)}\|$ grows like $\sqrt d$, so the damage grows with $d$. The thesis's One-Step cosines do so: 0.967, 0.848 and 0.560 at $d=100$, 500 and 2000, which with orthonormal patterns and exact forgetting cannot be. *Prediction:* the decay form loses the direction at small $\eta$, the more the larger $d$; the direct form never does. That this is how the printed numbers came about is a guess.

# %%
runs = streams(13)
x, y = draw(world, 5000, runs)
pairs = theory.paired_start(25, n_patterns, n_relevant, sigma_a, runs, torch.float32)
pairs = training.to_device(pairs, device)
steps_tried = 10.0 ** np.arange(-9, -2.5)
ambients = sorted({n_patterns, ambient, 4 * ambient})
decayed = np.zeros((2, len(ambients), len(steps_tried), replicas))
rf_cosine = np.zeros((len(ambients), 8))
for i, dim in enumerate(ambients):
    spaces = [orthonormal_features(n_patterns, dim, g) for g in runs]
    dictionary = torch.stack(spaces)  # (replica, D, d)
    w = torch.stack([torch.randn(25, dim, generator=g) for g in runs]).repeat(1, 2, 1)
    w /= n_relevant
    params = {**pairs, "w": (w @ dictionary.mT).to(device)}
    slope = theory.hinge_gradient(params, x, y, noise)[1]["w"].cpu() @ dictionary
    direction = dictionary[:, :n_relevant].sum(1)
    fresh = torch.randn(8, 300, dim, generator=runs[0])  # as many as the thesis has
    rf_cosine[i] = probes.cosines(fresh, direction[0]).amax(1)
    for j, eta in enumerate(steps_tried):
        decay = w - eta * (slope + (2 * (1 / (2 * eta))) * w)
        for form, one in enumerate((decay, -eta * slope)):
            for r in range(replicas):
                found = probes.cosines(one[r], direction[r]).abs().median()
                decayed[form, i, j, r] = found
mean_cosine = decayed.mean(3)
print("cosines after a step of 1e-7, decay form:", mean_cosine[0, :, 2].round(2))
print("direct form:", mean_cosine[1, :, 2].round(2), "for d =", ambients)
print("best of 300 random directions:", rf_cosine.mean(1).round(3))

# %% tags=["hide-input"]
fig, ax = plt.subplots(figsize=(7.5, 2.9))
for i, (dim, color) in enumerate(zip(ambients, figures.shades(len(ambients)))):
    ax.plot(steps_tried, mean_cosine[0, i], "o-", color=color, ms=4)
    at = (1.12e-6, mean_cosine[0, i, 3] - 0.055)
    ax.annotate(f"$d={dim}$", at, color=color, fontsize=11)
    ax.plot(steps_tried, mean_cosine[1, i], color=THEORY, lw=1.2)
ax.annotate("direct form, every $d$", (2e-9, 0.87), color=THEORY)
ax.set(xscale="log", xlabel=r"step size, $\eta$", ylabel="median cosine")
ax.set(ylim=(0, 1.05), title="Forgetting by subtraction loses the direction in float32")
figures.show(
    fig,
    alt="Median cosine of first-step weights with the right direction over the step "
    "size. In the decay form it rises from near zero to almost one as steps become "
    "larger, later for larger dimension; in the direct form it is almost one always.",
)

# %% tags=["remove-cell"]
ledger.mean(
    "float32-decay-loses-the-direction",
    lost=decayed[0, :, 0].max(0),
    kept=decayed[0, :, -1].min(0),
    drop=decayed[0, 0, 3] - decayed[0, -1, 3],  # at a step of 1e-6
)
direct = decayed[1].reshape(-1, replicas)
ledger.mean("direct-form-keeps-it", least=direct.min(0), spread=np.ptp(direct, 0))
fall = rf_cosine[0] / rf_cosine[-1] / np.sqrt(ambients[-1] / ambients[0])
ledger.mean("random-cosine-falls-with-dimension", fall)
ledger.mean("random-cosine-of-table-a4", rf_cosine[ambients.index(ambient)])

# %% [markdown]
# (The best of 300 random directions has a cosine of nearly 0.3 at $d=100$ and of 0.13 at $d=500$. Table A.4 prints 0.293 and 0.296 under $d=500$: these runs were probably made at $d=100$.)
#
# ### Other labels, other balances, fewer points (Tables A.2 to A.5)
#
# *What the paper did:* the interval labels, with $m=100$ and 200 steps; $d=100$ and 2000; class ratios of 0.8 and 0.9; 25,000 points, and 10,000 with 50 pairs. *What is done here:* all of these with fewer points, in pattern coordinates, in which $d$ plays no part (one run in a rotated space of higher dimension checks that). With 90 % negatives the last stage takes twice the steps, because a batch has few points of the smaller class. *Predictions.* Network and two steps solve all of them, given balanced weights. One step gives the share of the larger class, and so does the network where unbalanced classes have no structure (the last column of Table A.4). Fixed features stay behind. On interval labels, a half-space, the tangent kernel succeeds as well; without structure there is still something to find, since $\gamma\ne0$.


# %%
def variation(one, like, n, methods, purpose, times):
    """Methods on another distribution; of each run best cosine and larger class."""
    runs = streams(purpose, variation_replicas)
    train, test = draw(one, n, runs), draw(one, n_test, runs)
    stages = emergence(*train, like, small_pairs, runs)
    seen = (train, test, times * variation_steps)
    direction = (torch.arange(n_patterns) < like.n_relevant).double().to(device)
    best = probes.cosines(stages[2]["w"], direction).amax(1)
    positive = hits(torch.ones_like(test[1]), test[1])  # share of the test points
    found = best.cpu().numpy(), positive.maximum(1 - positive).cpu().numpy()
    return train_methods(methods, stages, *seen, looks=2, size=0.02), *found


# %%
basic = ("Network", "Two steps", "One step")
every = (*basic, "Random features", "Tangent kernel")
variations = {
    "interval": (interval, interval, n_train, every),
    "interval, uniform": (interval.without_structure(), interval, n_train, every),
    "80 % negative": (world.unbalanced(0.8), world, n_train, every),
    "90 % negative": (world.unbalanced(0.9), world, n_train, every),
    "half the points": (world, world, n_train // 2, every),
    "a fifth of the points": (world, world, n_train // 5, every),
    "80 %, uniform": (uniform.unbalanced(0.8), world, n_train // 5, basic[:1]),
    "90 %, uniform": (uniform.unbalanced(0.9), world, n_train // 5, basic[:1]),
}
varied, nearest, larger_here, larger = {}, {}, {}, {}
for i, (name, setting) in enumerate(variations.items()):
    # A batch has few points of the smaller class: the last stage takes longer.
    times = 2 if name == "90 % negative" else 1
    results, nearest[name], larger_here[name] = variation(*setting, 20 + i, times)
    varied[name], share = results, setting[0].positive_share
    larger[name] = max(share, 1 - share)
    print(f"{name}, larger class {larger[name]:.3f}: train, test; ", end="")
    print(f"cosine after two steps {nearest[name].mean():.3f}")
    summary(results)

# %% tags=["hide-input"]
fig, ax = plt.subplots(figsize=(7.5, 3.6))
shown = {name: results for name, results in varied.items() if len(results) > 1}
for method, marker, shift in zip(every, "osD^v", np.linspace(-0.3, 0.3, 5)):
    groups = {name: final(results[method]) for name, results in shown.items()}
    style = {"horizontal": True, "summary": None, "marker": marker, "label": method}
    figures.runs(ax, groups, COLOR[method], shift=shift, size=5, **style)
for row, name in enumerate(shown):
    ax.plot([larger[name]] * 2, [row - 0.42, row + 0.42], color=THEORY, lw=1.5)
ax.set(xlabel="test accuracy (bars: share of the larger class)", xlim=(0.45, 1.01))
ax.legend(loc="center left", bbox_to_anchor=(1, 0.5))
ax.set_title("Two steps suffice in every variation")
figures.show(
    fig,
    alt="Test accuracies in six variations. Network and two steps are at or near one "
    "in all; one step lies on the bar of the larger class; random features and tangent "
    "kernel stay well below one, but for the tangent kernel on the intervals.",
)

# %% tags=["remove-cell"]
ids = {
    "interval": ("interval-is-learned", "interval-one-step-constant"),
    "80 % negative": ("imbalance-80-is-learned", "imbalance-80-one-step-constant"),
    "90 % negative": ("imbalance-90-is-learned", "imbalance-90-one-step-constant"),
    "half the points": ("half-is-learned", "half-one-step-constant"),
    "a fifth of the points": ("fifth-is-learned", "fifth-one-step-constant"),
}
for name, (learned, constant) in ids.items():
    network, heads, one = (100 * final(varied[name][method]) for method in basic)
    ledger.mean(learned, np.minimum(network, heads))
    ledger.mean(constant, np.abs(one - 100 * larger[name]))


# %% tags=["remove-cell"]
def of(name, method):
    """Accuracies in %, of the runs that every method has."""
    return 100 * final(varied[name][method])[:tangent_replicas]


cases = product(list(ids)[1:], every[3:])
ahead = [of(name, "Network") - of(name, method) for name, method in cases]
ledger.mean("fixed-features-behind-in-variations", np.min(ahead, 0))
best = [nearest[name] for name in [*ids, "interval, uniform"]]
ledger.mean("variations-find-the-patterns", np.min(best, 0))
skewed = ("80 %, uniform", "90 %, uniform")
over = [final(varied[name]["Network"]) - larger_here[name] for name in skewed]
ledger.mean("imbalance-without-structure", 100 * np.max(over, 0))
avoided = {}  # (world, method): errors of the larger class that are avoided, a share
for name, method in product(("interval", "interval, uniform"), ("Network", every[-1])):
    right = final(varied[name][method])
    constant = larger_here[name][: len(right)]
    avoided[name, method] = measure.errors_avoided(right, constant)
    print(f"{name}, {method}: errors avoided {avoided[name, method].mean():.2f}")
tangents = [avoided[name, every[-1]] for name in ("interval", "interval, uniform")]
ledger.mean("interval-tangent-kernel-learns", np.min(tangents, 0))
ledger.mean("interval-random-features-do-not", of("interval", "Random features"))
ledger.mean("interval-without-structure", avoided["interval, uniform", "Network"])

# %% [markdown]
# On interval labels of uniform inputs the larger class alone has 95.1 %, so methods are judged there by the share of its errors that they avoid: nearly all for the network, and most for the tangent kernel. Of the fixed features, random ones are hardly better than the larger class where classes are unbalanced (the thesis prints 70 and 72 %, less than a constant has). The tangent kernel is the unstable one, as in the thesis: with 90 % in one class it fits 98 % of its training points and falls to the larger class or below it on fresh ones (81.7 % there). The network on unbalanced uniform inputs gives the larger class; the thesis's, which memorises, has 61.7 and 71.8 %.
#
# Does balancing matter? The second step moves the bias, too, by $a_i\beta_i\mathbb E[y]$ (put 1 for $x$ in {prf:ref}`thm-08-second`). With $\mathbb E[y]=0$ that is nothing. With 90 % in one class it is tens of times the spread of the biases, and the grid of kinks that {prf:ref}`lem-08-tents` needs is gone. The main theorem assumes (A0) for a reason, and the general one weighs the classes:

# %%
runs = streams(30, variation_replicas)
one = world.unbalanced(0.9)
train_skewed, test_skewed = draw(one, n_train // 2, runs), draw(one, n_test, runs)
weighing = {}
for name, weighted in (("balanced", True), ("as they are", False)):
    *_, twice_skewed = emergence(*train_skewed, world, small_pairs, runs, weighted)
    run = train_head(frozen(twice_skewed), train_skewed, test_skewed, variation_steps)
    weighing[name] = final(run)
    moved = (twice_skewed["b"] * twice_skewed["a"].sign()).abs().median().item()
    print(f"{name}: test {weighing[name].mean():.2f}, median |bias| {moved:.2f}")

# %% tags=["remove-cell"]
lost = 100 * (weighing["balanced"] - weighing["as they are"])
ledger.mean("second-step-needs-balance", lost)

# %% tags=["remove-cell"]
turned = []
runs = streams(31, 2)
x, y = (part.cpu().double() for part in draw(world, 1000, runs))
start = theory.paired_start(20, n_patterns, n_relevant, 4.0, runs, torch.float64)
dictionary = orthonormal_features(n_patterns, 2 * n_patterns, runs[0], torch.float64)
eta = theory.first_step_size(gamma, world.scale, n_relevant, 20)
for basis in (torch.eye(n_patterns, dtype=torch.float64), dictionary):
    rotated = {**start, "w": start["w"] @ basis}
    *_, twice_there = theory.first_steps(rotated, x @ basis, y, eta, noise)
    turned.append(twice_there["w"] @ basis.T)
gap = ((turned[0] - turned[1]).norm() / turned[0].norm()).item()
ledger.exact("ambient-dimension-plays-no-part", gap)

# %% [markdown]
# ### Another structure: a hundred code words (Figure A.11)
#
# *What the paper did:* $k=50$ relevant patterns of $D=250$ take one of 100 random values, 50 for each class; a picture of the weights. *What is done here:* a number. The correlations $\gamma_j$ now differ from pattern to pattern, in sign too. *Prediction,* from {prf:ref}`thm-08-second`, which needs no (A1): weights point to $\sum_j\gamma_jM_j$.

# %%
runs = streams(32, law_replicas)
words = [PatternCodes.random(250, 50, 100, g) for g in runs]
x, y = training.stack([one.sample(n_train // 2, g) for one, g in zip(words, runs)])
truth = torch.stack([one.correlations for one in words])
code_start = theory.paired_start(25, 250, 50, 1.0, runs, torch.float32)
weight = equal_classes(y)
_, code_twice = theory.first_steps(code_start, x, y, 1e-9, 50**-1.5, weight=weight)
codes = zip(code_twice["w"], truth)
code_cosine = torch.stack([probes.cosines(*one).abs().median() for one in codes])

# %% tags=["hide-input"]
fig, ax = plt.subplots(figsize=(7.5, 2.9))
w = code_twice["w"][0, code_twice["w"][0].norm(dim=1).argmax()].double()
w = w * (w @ truth[0]).sign() / w.norm() * truth[0].norm()
ax.plot(truth[0, 50:], w[50:], ".", color=GREY, label="other patterns")
ax.plot(truth[0, :50], w[:50], "o", color=COLOR["Two steps"], ms=5, label="relevant")
reach = truth[0].abs().max().item() * 1.1
ax.plot([-reach, reach], [-reach, reach], color=THEORY, lw=1)
ax.set(xlabel=r"correlation with the label, $\gamma_j$", ylabel="weight, rescaled")
ax.legend()
ax.set_title("Weights are the correlations, pattern by pattern")
figures.show(
    fig,
    alt="Weights of one neuron against the correlations of 250 patterns. Fifty "
    "relevant ones lie along the diagonal, two hundred others at the origin.",
)

# %% tags=["remove-cell"]
ledger.mean("codes-emerge", code_cosine)

# %% [markdown]
# ### Clusters of Gaussians (Table A.6, Figure A.12)
#
# *What the paper did:* $2^k$ Gaussian clusters around the vertices $\sum_i\pm M_i$ of a cube, with the product of the signs as the label, in three sizes (below), $m=800$ ReLUs trained "as usual". It shows that some neurons learn the centres. *What is done here:* 200 ReLUs, small initial weights, gradient descent with momentum on the logistic loss. *Prediction:* for every centre there is a neuron that points to it.
#
# A remark on the text: it represents the label by $\sum_i\alpha_i\,\mathrm{ReLU}(\langle c_i,x\rangle)$ over the centres $c_i$, with $\alpha_i$ their labels. At a centre that sum is $y\sum_h\binom kh(-1)^h\max(0,k-2h)$, which is $-4y$ for $k=4$ and 0 for $k=5$. With the bias $-(k-1)$ it is $y$.

# %%
# NBVAL_CHECK_OUTPUT
for k in (4, 5):
    centres = np.array(list(product((-1, 1), repeat=k)))
    label = centres.prod(1)
    for name, bias in (("without bias", 0), ("with bias", -(k - 1))):
        value = label * (np.maximum(centres @ centres.T + bias, 0) @ label)
        print(f"k = {k}, {name}: y times the sum is", np.unique(value).tolist())


# %%
def relu_start(width, dim, size, runs):
    """Small random weights: w_i of length about size, a_i of 3 size / sqrt(width)."""
    draws = [[torch.randn(s, generator=g) for s in ((width, dim), width)] for g in runs]
    w, a = (torch.stack(part).to(device) for part in zip(*draws))
    a = 3 * size * a / width**0.5
    return {"w": size * w / dim**0.5, "b": torch.zeros_like(a), "a": a}


def train_relu(start, points, size, steps, descent):
    """Networks after descent of the logistic loss on batches of a size."""
    loss, batches = TwoLayerObjective("logistic"), cyclic(points, size)
    return training.fit(loss, start, batches, steps=steps, optimizer=descent).params


# %%
clusters = {}
for i, (dim, k, spread) in enumerate(((100, 4, 1.0), (25, 4, 0.7), (100, 5, 1.0))):
    vertex = torch.tensor(list(product([-1.0, 1.0], repeat=k)), dtype=torch.float64)
    means = F.pad(vertex, (0, dim - k))
    std = torch.full((2**k,), spread * (k / dim) ** 0.5)
    runs = streams(40 + i, variation_replicas)
    mixture = GaussianMixture(means, vertex.prod(1), stds=std)
    (x, y), fresh = draw(mixture, gaussian_points, runs), draw(mixture, n_test, runs)
    start = relu_start(200, dim, 0.1, runs)
    steps_here = gaussian_epochs * (1 if k == 4 else 3) * (gaussian_points // 200)
    descent = training.SGD(0.1, momentum=0.9)
    params = train_relu(start, (x, y), 200, steps_here, descent)
    unit = F.normalize(mixture.features, dim=1).float().T.to(device)
    weights = [F.normalize(p["w"], dim=-1) for p in (start, params)]
    nearest = [(w @ unit).amax(1).cpu() for w in weights]
    right = hits(two_layer_outputs(params, fresh[0]), fresh[1]).cpu()
    clusters[f"{2**k} clusters, $d={dim}$"] = (right, *nearest)

# %% tags=["hide-input"]
fig, ax = plt.subplots(figsize=(7.5, 2.7))
for row, (_, before, after) in enumerate(clusters.values()):
    for values, color, shift in ((before, GREY, -0.15), (after, BLUE, 0.15)):
        at = np.full(values.numel(), row + shift)
        ax.plot(values.flatten(), at, "|", color=color, ms=12, alpha=0.5)
ax.annotate("before", (0.12, -0.1), color="#555555")
ax.annotate("after", (0.85, 0.42), color=BLUE)
ax.set_yticks(range(3), clusters)
ax.set(xlabel="cosine of a centre with its nearest neuron", xlim=(0, 1.02))
ax.set(ylim=(2.6, -0.6), title="Every centre is found by some neuron, or nearly every")
figures.show(
    fig,
    alt="Cosines of cluster centres with their nearest neuron, before and after "
    "training, in three settings. Before they lie around 0.3 to 0.5, after near one; "
    "with 32 clusters a few centres stay at 0.6.",
)

# %% tags=["remove-cell"]
names = ("gaussian-e1", "gaussian-e2", "gaussian-e3")
for (right, _, after), id in zip(clusters.values(), names):
    missed = (after < 0.8).sum(1)
    ledger.mean(id, right=right, cosine=after.mean(1), missed=missed)

# %% [markdown]
# ### Real images (Figures 2.3, A.13 to A.15)
#
# *What the paper did:* two-layer networks with $m=50$ and momentum 0.95 on MNIST 0/1, on CIFAR-10 airplane/automobile and SVHN 0/1; the weights form two clusters (four on SVHN). *What is done here:* MNIST, from the 5,000 images that ship with the book, at $14\times14$; 0 against 1, and 4 against 9 in the place of the harder pairs. *Prediction:* weights start in all directions and end near one axis, on the side that the sign of $a_i$ decides.


# %%
def two_classes(images, *classes):
    """Images of the classes at half the size, and labels, of both parts of a set."""
    for x, y in ((images.x_train, images.y_train), (images.x_test, images.y_test)):
        keep = torch.isin(y, torch.tensor(classes))
        yield F.avg_pool2d(x[keep], 2), y[keep]


def replicated(parts):
    """The same tensors for every run."""
    return [one.to(device).expand(image_replicas, *one.shape) for one in parts]


def image_pair(images, first, second):
    """Two classes as labels 1 and -1, flat, centred, with mean square length 1."""
    (x, y), (x_test, y_test) = two_classes(images, first, second)
    x, x_test = x.flatten(1), x_test.flatten(1)
    y, y_test = (torch.where(part == first, 1.0, -1.0) for part in (y, y_test))
    centre, size = x.mean(0), (x - x.mean(0)).square().sum(1).mean().sqrt()
    return replicated([(x - centre) / size, y, (x_test - centre) / size, y_test])


def sides(w, a):
    """Mean cosine of neurons with equal signs of a, and of others (replica,)."""
    unit = F.normalize(w, dim=-1)
    gram, equal = unit @ unit.mT, a.sign()[:, :, None] * a.sign()[:, None] > 0
    own = equal & ~torch.eye(w.shape[1], dtype=torch.bool, device=w.device)
    means = [(gram * m).sum((1, 2)) / m.sum((1, 2)) for m in (own, ~equal)]
    return torch.stack(means).cpu()


# %%
pictures = {}
for i, pair in enumerate(((0, 1), (4, 9))):
    x, y, x_test, y_test = image_pair(images, *pair)
    start = relu_start(50, x.shape[-1], 0.1, streams(50 + i, image_replicas))
    descent = training.SGD(0.05, momentum=0.95)
    params = train_relu(start, (x, y), 100, image_steps, descent)
    right = hits(two_layer_outputs(params, x_test), y_test).cpu()
    ends = [sides(p["w"], start["a"]) for p in (start, params)]
    pictures[pair] = (right, ends, start, params)
    shown, gathered = right.numpy().round(3), ends[1][:, 0].numpy().round(2)
    print(pair, "test accuracy", shown, "sides", gathered)

# %% tags=["hide-input"]
fig, axes = plt.subplots(1, 4, figsize=(7.5, 2.4))
for i, (pair, (_, _, start, params)) in enumerate(pictures.items()):
    axis = (params["w"][0] * start["a"][0].sign()[:, None]).mean(0).cpu()
    sign = start["a"][0].sign().cpu().numpy()
    draw_plane(axes[2 * i], params["w"][0].cpu(), axis.double(), sign)
    axes[2 * i].set_title(f"weights, {pair[0]} against {pair[1]}", fontsize=10)
    channels, height, width = images.x_train.shape[1:]
    picture = axis.view(channels, height // 2, width // 2)
    limit = picture.abs().max()
    axes[2 * i + 1].imshow(picture.mean(0), cmap="RdBu_r", vmin=-limit, vmax=limit)
    axes[2 * i + 1].set(xticks=[], yticks=[])
    axes[2 * i + 1].set_title("their axis", fontsize=10)
figures.show(
    fig,
    title="On images, too, neurons gather at the two ends of one axis",
    alt="For two pairs of digits a map of the weights, with rings near one star and "
    "squares near the other, and the mean weight as a picture: a ring against a bar "
    "for 0 and 1, and a closed against an open top for 4 and 9.",
)

# %% tags=["remove-cell"]
ids = ("images-form-two-clusters", "harder-images-form-two-clusters")
for id, (right, ends, *_) in zip(ids, pictures.values()):
    before, after = (end[0] - end[1] for end in ends)
    ledger.mean(id, right=right, before=before, after=after)

# %% [markdown]
# Most neurons end at the star that the sign of $a_i$ says, and the rest on the way to it.
#
# ### Filters of a deep network (Figures A.16 and A.17, Table A.7)
#
# *What the paper did:* ResNet-18 of width 128 and 256 on two classes of CIFAR-10. Early gradients of a filter agree with one another (cosines of two averages of ten steps 0.51 to 0.91), filters change most in the first epochs, and the filters of a block gather around two opposite centres. *What is done here:* a network of three convolutions on the digits 0 and 1. Filters are compared by what they have *gained* since the start, and centres are found by 2-means on unit vectors, where the paper picked them by eye. *Chance:* as many random directions in as many dimensions, clustered in the same way (means of eight draws). Three independent vectors have a cosine of $1/\sqrt3=0.58$ with their *mean*, so we compare gradients in pairs. *Prediction:* in every layer the centres are more opposite than by chance, and filters are closer to their own, and as close as in the paper; the mean gradients of steps 1–10, 11–20 and 21–30 agree with one another; more happens in the first fifth than afterwards, in the last layer.

# %%
(x, y), (x_test, y_test) = two_classes(images, 0, 1)
centre, size = x.mean(), x.std()
x, y_filters, x_test = replicated([(x - centre) / size, y, (x_test - centre) / size])
nets = []
for r in range(image_replicas):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed + r)
        nets.append(SmallConvNet(x.shape[2], 2))
states = training.to_device(training.stack(nets), device)
layers = [k for k in states if k.startswith("convs")]
fifth = filter_steps // 5


# %%
run = training.fit(
    training.ModuleObjective(nets[0].to(device), losses.cross_entropy),
    states,
    cyclic((x, y_filters), 64),
    steps=filter_steps,
    optimizer=training.SGD(0.05),
    probes={k: lambda p, k=k: p[k].flatten(2) for k in layers},
    log_at=sorted({0, 10, 20, 30, fifth, filter_steps}),
)
filters_right = training.predict(nets[0], run.params, x_test).argmax(-1).cpu() == y_test
filters_right = filters_right.double().mean(1)


# %%
# A step is minus 0.05 times the gradient, so that changes are sums of gradients.
at = {int(step): place for place, step in enumerate(run.steps)}
agreement, early_late, gathered = [], [], []  # by layer
for k in layers:
    log = run.log[k]
    chunks = torch.stack([log[at[step]] for step in (0, 10, 20, 30)]).diff(dim=0)
    pairs_of_chunks = chunks[[0, 0, 1]], chunks[[1, 2, 2]]
    agreement.append(F.cosine_similarity(*pairs_of_chunks, dim=-1).mean(2))
    ends = torch.stack([log[at[step]] for step in (0, fifth, filter_steps)])
    early_late.append((1 - F.cosine_similarity(ends[:-1], ends[1:], dim=-1)).mean(2))
    gained = log[-1] - log[0]
    gathered.append(measure.gathering(gained, streams(51, 1)[0]))
# Table A.7 has one filter of the last block, near the centre of a cluster:
typical = measure.typical_agreement(chunks, gained)
g = streams(52, 1)[0]
random = [torch.randn(part.shape, generator=g) for part in (chunks, gained)]
chance_typical = measure.typical_agreement(*random)

# %%
agreement = torch.stack(agreement).cpu().numpy()  # (layer, pair of chunks, replica)
early_late = torch.stack(early_late).cpu().numpy()  # (layer, part, replica)
opposite, within = np.moveaxis(gathered, -1, 0)  # (layer, filters or chance, replica)
print("cosines of early gradients (1, 2), (1, 3), (2, 3), layer by layer; by chance 0:")
print(agreement.mean(2).round(2))
print(f"least of a typical filter of the last layer: {typical.mean():.2f}", end=" ")
print(f"by chance {chance_typical.mean():.2f}")
names = ("cosine of the centres", "cosine with the own centre")
for name, found in zip(names, (opposite, within)):
    filters, chance = found.mean(2).T.round(2)
    print(name, filters, "by chance", chance)
print("change in the first fifth and the rest:")
print(early_late.mean(2).round(4))

# %% tags=["remove-cell"]
least = agreement.min((0, 1))  # over layers and pairs
ledger.mean("early-gradients-agree", agreement=least, right=filters_right)
ledger.mean("typical-gradients-agree", agreement=typical, right=filters_right)
apart_by, own_by = (found[:, 0] - found[:, 1] for found in (opposite, within))
ledger.mean("filter-clusters-are-opposite", apart_by.max(0))
ledger.mean("filters-gather", cosine=within[:, 0].min(0), excess=own_by.min(0))
ratio = early_late[:, 0] / early_late[:, 1]  # (layer, replica)
ledger.mean("filters-form-early", ratio.min(0))
ledger.mean("last-layer-forms-early", ratio[-1])

# %% [markdown]
# In every layer filters are closer to their centres than random directions are to theirs, and as close as the filters that the paper picked by eye. Opposite centres say less: in the first layer, of nine weights a filter, the centres of random directions have cosines like those of the paper, and our runs do not decide whether those of the filters are more opposite. In the second and third layer they are. Early gradients agree more than by chance in the mean over filters and runs, those of the first and the last ten steps least. Runs differ so much that the least of these cosines may be anything from near 0 to 0.3 in the mean over filters, and from 0 to 0.8 for a typical filter of the last layer, where the paper has 0.51. The second and third layer change most in the first fifth of training, in the mean over runs. The first layer changes more afterwards: "early" is a matter of the layer here.
#
# ### Injected inputs (Algorithm 3, Figures 2.4 and A.18 to A.22)
#
# Is it the *inputs* of real data that make learning easy, or their labels? The paper replaces half of the images by inputs without structure and lets one and the same teacher label both halves. What is then hard must be hard for its inputs.
#
# :::{prf:algorithm} Labels from one teacher (Algorithm 3)
# :label: alg-08-teacher
#
# 1. Train networks of growing width on the labelled images $\mathcal L$; take as teacher the width at the bottom of the U of the test loss.
# 2. Train it again with a regulariser on the injected inputs $\mathcal U$, so that its labels there are balanced and confident: with class probabilities $f$ and their mean $\bar f$ over $\mathcal U$,
#
# $$
# R=\sum_j\bar f_j\ln\bar f_j-\lambda\,\mathbb E_{\mathcal U}\sum_jf_j\ln f_j .
# $$ (eq-08-regulariser)
#
# 3. Label both with it, mix with a share $\alpha$ of $\mathcal U$, train a student, and judge it on both parts.
# :::
#
# With $\lambda=1$ (the thesis gives no value), $-R$ is the mutual information between input and predicted class, between 0 and $\ln10$; entropy is concave, so $R\le0$.
#
# *What the paper did:* MNIST with width 9, CIFAR-10 and SVHN with small ResNets; injected inputs Gaussian or from Tiny ImageNet. *What is done here:* MNIST at $14\times14$, one hidden layer with $z^2$ as activation and width 9, Gaussian inputs with the pixels' means and deviations, $\alpha=\frac14,\frac12,\frac34$ in one stack, and a student of width 50. *Prediction:* the student does well on images and poorly on Gaussian inputs, although the labels come from the same small network, and $\mathcal U$ is not larger.


# %%
class Quadratic(torch.nn.Module):
    """One hidden layer with activation z^2, ten classes: the thesis's FC(m)."""

    def __init__(self, dim, width):
        super().__init__()
        self.first = torch.nn.Linear(dim, width)
        self.second = torch.nn.Linear(width, 10)

    def forward(self, x):
        return self.second(self.first(x).square())


def informative(logits):
    """R with lambda = 1: minus the mutual information of input and class."""
    log_f = logits.log_softmax(-1)
    mean = log_f.exp().mean(0)
    return (mean * (mean + 1e-12).log()).sum() - (log_f.exp() * log_f).sum(-1).mean()


def teacher_loss(f, x, y, u):
    """Cross-entropy on images and the regulariser on injected inputs."""
    return F.cross_entropy(f(x), y) + informative(f(u))


# %%
def fit_quadratic(loss, width, parts, streams_of, epochs, probes=None):
    """A stack of FC(width) trained with Adam on batches of 200."""
    nets = []
    for g in streams_of:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(torch.randint(2**31, (1,), generator=g)))
            nets.append(Quadratic(parts[0].shape[-1], width).to(device))
    total = epochs * (parts[0].shape[1] // 200)
    return nets[0], training.fit(
        training.ModuleObjective(nets[0], loss),
        training.stack(nets),
        cyclic(parts, 200),
        steps=total,
        optimizer=training.Adam(3e-3),
        probes=probes or {},
        log_at=training.log_steps(total, 12),
    )


# %%
small = [F.avg_pool2d(x, 2).flatten(1) for x in (images.x_train, images.x_test)]
pixel_mean, pixel_std = small[0].mean(0), small[0].std(0)
centre, size = small[0].mean(), small[0].std()
n_images = min(len(small[0]), 4000) // 200 * 200
scaled = ((part - centre) / size for part in (small[0][:n_images], small[1]))
x, x_test = replicated(scaled)
y, y_test = (part.to(device) for part in (images.y_train[:n_images], images.y_test))
runs = streams(60, image_replicas)
shape = (n_images + 1000, len(pixel_mean))
gaussian = torch.stack([torch.randn(shape, generator=g) for g in runs])
gaussian = ((pixel_mean + pixel_std * gaussian - centre) / size).to(device)
injected, injected_test = gaussian[:, :n_images], gaussian[:, n_images:]
y = y.expand(image_replicas, -1)
widths, curve = (1, 3, 6, 9, 14, 25, 60), []
for width in widths:
    own = streams(61, image_replicas)
    epochs = 1 + teacher_epochs // 2
    net, run = fit_quadratic(losses.cross_entropy, width, (x, y), own, epochs)
    logits = training.predict(net, run.params, x_test)
    curve.append([F.cross_entropy(one, y_test).item() for one in logits])
curve = np.array(curve)
print(f"test loss by width {widths}: {curve.mean(1).round(2)}")

# %% tags=["remove-cell"]
ledger.not_run(
    "teacher-of-width-nine",
    "needs many passes over the images; after eight the loss falls up to width 25",
)

# %%
own = streams(62, image_replicas)
teacher, run = fit_quadratic(
    teacher_loss, teacher_width, (x, y, injected), own, teacher_epochs
)


def teach(inputs):
    """The teacher's labels."""
    return training.predict(teacher, run.params, inputs).argmax(-1)


tests = {"images": x_test, "injected": injected_test}
parts = {name: (inputs, teach(inputs)) for name, inputs in tests.items()}
shares = (0.0, 0.25, 0.5, 0.75)
order = torch.stack([torch.randperm(n_images, generator=g) for g in runs]).to(device)
pools = [torch.cat(p, 1) for p in ((x, injected), (teach(x), teach(injected)))]
place = torch.arange(n_images, device=device)
picks = [order + n_images * (place < share * n_images) for share in shares]
mixed = [torch.cat([training.pick_own(pool, p) for p in picks]) for pool in pools]


# %%
def student(width, mixed, copies, purpose):
    """Students on mixed inputs, judged on both parts at every logged step."""
    stack = [g for _ in range(copies) for g in streams(purpose, image_replicas)]
    test = {k: [torch.cat([p] * copies) for p in v] for k, v in parts.items()}
    net = Quadratic(x.shape[-1], width).to(device)
    judges = {
        k: lambda p, v=v: probes.accuracy(training.predict(net, p, v[0]), v[1])
        for k, v in test.items()
    }
    setting = (losses.cross_entropy, width, mixed, stack, teacher_epochs)
    _, run = fit_quadratic(*setting, judges)
    log = {k: run.log[k].view(len(run.steps), copies, -1).numpy() for k in parts}
    return log, run.steps


def ends_of(log, i):
    """Mean agreement of the students of one mixture in the end, on both parts."""
    return {k: v[-1, i].mean().round(3).item() for k, v in log.items()}


# %%
by_share, student_steps = student(9, mixed, len(shares), 63)
half = slice(2 * image_replicas, 3 * image_replicas)
wide, _ = student(50, [part[half] for part in mixed], 1, 64)
for i, share in enumerate(shares):
    print(f"share {share}:", ends_of(by_share, i))
for width in student_widths:
    alone, _ = student(width, (injected, teach(injected)), 1, 65)
    missed = 1 - alone["injected"][-1].mean()
    print(f"width {width}, injected inputs alone: test error {missed:.3f}")
print("width 50, share 0.5:", ends_of(wide, 0))

# %% tags=["hide-input"]
fig, axes = plt.subplots(1, 2, figsize=(7.5, 3.1), width_ratios=(1.4, 1))
for part, color, name, lift in (
    ("images", BLUE, "on images", 0.06),
    ("injected", ORANGE, "on Gaussian inputs", -0.34),
):
    axes[0].plot(student_steps, by_share[part][:, 2], color=color, lw=1.2)
    at = (0.97 * student_steps[-1], by_share[part][-1, 2].mean() + lift)
    axes[0].annotate(name, at, color=color, ha="right")
axes[0].plot(student_steps, by_share["images"][:, 0], color=GREY, lw=1, ls="--")
at = (0.03 * student_steps[-1], 0.95)
axes[0].annotate("images alone (dashed)", at, color="#555555")
axes[0].set(xlabel="step", ylabel="agreement with the teacher", ylim=(0, 1.05))
axes[0].set_title("student, half of the inputs injected", fontsize=11)
axes[1].plot(widths, curve, ".-", color=GREY, lw=1)
axes[1].plot(widths, curve.mean(1), "o-", color=THEORY)
axes[1].set(xscale="log", xlabel="width", ylabel="test loss")
axes[1].set_xticks(widths, widths)
axes[1].set_title("choosing a teacher", fontsize=11)
figures.show(
    fig,
    title="One teacher labels both; its labels are learned on images",
    alt="Left, agreement of students with their teacher over training. On images it "
    "rises quickly above 0.8, almost as for students that see images alone; on "
    "Gaussian inputs it stays near 0.7. Right, test loss over width, falling "
    "until width 25 and level from there to 60.",
)

# %% tags=["remove-cell"]
seen, unseen = by_share["images"][-1], by_share["injected"][-1]  # (share, replica)
apart, wider = seen - unseen, wide["images"][-1, 0] - wide["injected"][-1, 0]
ledger.mean("injected-inputs-are-harder", apart[2])
ledger.mean("for-every-share", apart[1:].min(0))
ledger.mean("for-a-wider-student", wider)
ledger.mean("gap-larger-for-wider-student", wider - apart[2])
ledger.mean("images-part-as-good", right=seen[2], gain=seen[2] - seen[0])
ledger.mean("mixture-below-images-alone", seen[0] - (seen[2] + unseen[2]) / 2)

# %% [markdown]
# The student agrees with its teacher on images, and less on Gaussian inputs, for every share; on images it is as good as a student of images alone, within two points, as the paper finds on CIFAR-10. Read it with care. On Gaussian inputs a student has to get the teacher's *function* right in all directions that noise has, while images live in a few of them: that is the paper's point. But the teacher's margins are also smaller where it has seen no labels, in spite of $R$, and that alone would do something of the kind. The thesis picks the width of its teacher, 9, at the first minimum of the test loss over width. Training here is too short for wider networks to overfit, so the curve has no such minimum (right panel), and we take the thesis's width. (The thesis finds a larger gap for a student of width 50 than for one of 9; here the two differ by less than the noise.)
#
# <a id="08-held-up"></a>
# ## What held up
#
# The rules were set on pilot runs with other seeds before these runs. What was changed later is told below the table.
# (The cells that record the claims are in the notebook, but not on the site.)

# %%
# NBVAL_CHECK_OUTPUT
ledger.show()

# %% [markdown]
# **Holds.** Emergence, improvement and the table, on the parity mixture: two steps write the relevant patterns into every neuron, and a classifier on top of them is perfect, where random features and the tangent kernel stop at about three quarters and uniform inputs give nothing. The second step is exact up to $10^{-4}$, and the noise of both follows a law without free constants.
#
# **Holds, for another reason.** One Step's low accuracy is a matter of scale. With the step size of the schedule its features are affine (a threshold, 84 %), and constant up to a millionth (50 %, in either precision, if nobody standardises them); scaled up they are as good as those of the second step.
#
# **Does not hold here.** That the network fits uniform training points: it does not in as many passes as the paper makes, with any of three step sizes. That each of 32 Gaussian centres has a neuron near it: with a quarter of the paper's neurons a few do not. Random weights in 500 dimensions do not have the cosines that Table A.4 gives them.
#
# **Undecided by so few runs.** Filters: whether early gradients agree in every layer, and for a typical filter as much as in the paper; whether the first layer's centres are more opposite than by chance; whether every layer changes most at first. And whether a wider student makes the difference between images and Gaussian inputs larger.
#
# **A condition that matters.** Balanced classes. The printed schedule without class weights fails on unbalanced data in the second step, by moving the biases.
#
# **Better than printed.** The lower bound. The thesis's constant makes it empty at $k=5$; Bessel's inequality, with the norm that trained models have, puts it not far below the loss of random features and of the tangent kernel.
#
# **Stand-ins.** Digits for CIFAR-10 and SVHN, three convolutions for ResNets, Gaussian inputs for Tiny ImageNet.
#
# **Slips in the text.** The [errata page](../book/errata.md) has each with what was printed, what holds and a check.
#
# - Theorem 2.2: $\sqrt{2NB}$ for $\sqrt{2N}\,B$.
# - Tables: One Step's cosines depend on $d$ although they cannot (A.3); random weights at $d=500$ have the cosines of $d=100$ (A.4).
# - Settings: (A2) fails for the parity mixture at $p_o<\frac12$; interval labels and unbalanced classes violate (A0), where the schedule needs class weights; sizes at which Theorem 2.1 and Lemma A.17 say nothing ($m\ge k^{12}$, $k\ge64$); two values each of $\eta^{(1)}$ and $\sigma_\xi$ (Theorem A.20 and Lemma A.17; directions do not depend on a tiny $\eta^{(1)}$); students called ResNet-18 in section 2.3 and ResNet(9), ResNet(8) in the appendix.
# - Section A.7.3: a sum of ReLUs that is said to be the label and is its negative, or 0.
# - Proofs: the bias gradient without $\xi_i$ (A.20, A.318); the likely event of Lemma A.40 is $yg^{(1)}\le1$, and its gradients are those of the weighted loss; paired output weights have opposite signs (Lemma A.38), and all $2m$ of them are summed (A.19, the covariance of $\xi$); the first term of (A.279) is the penalty $\lambda\lVert\tilde a\rVert^2$; factors $\tilde\sigma$ in (A.304) and in $x=M\phi+\zeta/\tilde\sigma$ (A.8); the concepts of Theorem A.27 are signs and sums over $A$.
#
# **Rules that were changed.** Some claims were added when the chapter was checked against the thesis row by row, with limits from the pilot seeds as well: the direction after one step and in the variations, the fixed features and the uniform inputs in these, the printed third stage, One Step in float64, the cosines of Table A.4, the clusters of filters. The clusters of Gaussians allow half a missed centre a run in the mean (none at first, until one of nine seeds missed one), and early gradients are compared in pairs, since the limit of 0.4 for the cosine with their mean was below the level of chance. These things changed after runs that are judged had been seen.
#
# - The tangent kernel on interval labels without structure had 95.9 % at seed 0, against a limit of 96, with 40 pairs of neurons and half the step; the limit is as it was.
# - The claim on float32 asked at first that the cosine rise with every step size, which at seed 50021 it did not where it is chance anyway; it now compares three step sizes.
# - The classifier on exact first-step features is compared with the threshold on the same test points, no longer with 27/32, from which the threshold itself was 1.5 points away on the test points of seed 60029.
# - In a sweep over twenty seeds the classifier on two steps twice stayed below the limit of 97 with nine negatives to a positive, with 95.9 and 96.4 %, because it was not done; that variation now takes twice the steps.
# - The claim on the teacher's width asked for the least test loss at the paper's 9, and failed. The thesis has a first, local minimum there; after as few passes as ours the loss falls up to width 25 and then stays level, and the claim is listed as not run.
# - The two rules on clusters of filters asked for less than the paper has: centres with a negative cosine, which chance gives too, below that of a draw of random directions, and cosines with the own centre by 0.03 above those of the draw. They now compare with the mean of eight draws, and cosines with the own centre must reach the paper's least value, too. (A limit for centres at the paper's least value, −0.51, was tried. Chance meets it in the first layer, and it held at one seed and failed at another.) The claim on a typical filter is new.
# - On interval labels without structure, where the larger class has 95.1 %, limits were 96 and 97 %. Rules now judge the share of its errors that is avoided.
# - Memorisation of uniform inputs was judged in the main table's run, with fewer weights a point than in the paper and features that hardly move. It failed there and fails in the run that replaced it.
# - The claim on 32 Gaussian clusters did not count missed centres, and held. The images' part could be five points worse than images alone, now two.

# %% [markdown]
# <a id="08-not-run"></a>
# ## Not run here
#
# | What the paper has | Why not by default | What runs it |
# |---|---|---|
# | Table A.1 at its own size: 50,000 points, 300 pairs, 600 steps | time | `mvnb run 08 --preset paper` |
# | Table A.3, all methods at $d=100$ and 2000 | the ambient dimension plays no part; checked on the two steps | `mvnb run 08 -p ambient=2000` for the cosines |
# | Table A.5, the network on uniform inputs; all methods at 10,000 points and $m=50$ | the main table has it at one size | `mvnb run 08 -p n_train=10000 -p n_pairs=50` |
# | Noise and signal at more points, where the gate of step 1 limits its worst neuron | memory | `mvnb run 08 -p law_points=400000 -p law_replicas=2` |
# | Larger parities, $k=7$ and 9, where fixed features lose the more | reference lines are for $k=5$ | `mvnb run 08 -p n_relevant=7 --preset paper` |
# | CIFAR-10 pairs (Figure A.14) | not among the bundled sets | `mvnb run 08 -p dataset=cifar10` (classes 0/1 are airplane and automobile) |
# | SVHN pairs (Figure A.15), SVHN and Tiny ImageNet as injected inputs (Figures A.18, A.19) | not among the book's data sets | not offered |
# | Filters of ResNet(128) and ResNet(256) over 20 epochs (Figures A.16 and A.17, Table A.7), and whether those of the wider network form sharper clusters (Figure A.17); ResNet teachers and students | hours on a GPU | the stand-in, longer: `mvnb run 08 -p dataset=cifar10 -p filter_steps=3000` |
# | Figure A.22 (a): the first minimum of the test loss over width | needs many passes over the images | `mvnb run 08 -p teacher_epochs=200` |
# | Figure A.22 (b)–(d): students' errors over their width, by the teacher's width | three more families of trainings | `mvnb run 08 -p teacher_width=50 -p student_widths='[3,9,25,60,200]' -p teacher_epochs=100` |
# | Incoherent dictionaries with noise (appendix A.8) | the thesis runs none | not offered |

# %% [markdown]
# <a id="08-try"></a>
# ## Try it
#
# :::{exercise}
# :label: ex-08-gamma
#
# By hand: derive {eq}`eq-08-gamma`. For which $P$ is $\gamma=0$ at $p=\frac12$, and is the parity among them?
# :::
#
# :::{solution} ex-08-gamma
# :class: dropdown
#
# $\gamma=\mathrm{Cov}(y,\tilde\phi_j)=p(1-p)\bigl(\mathbb E[y|\tilde\phi_j=1]-\mathbb E[y|\tilde\phi_j=0]\bigr)$, and given $\tilde\phi_j=b$ the count is $S'+b$, with $\mathbb E[y]=2\Pr[S'+b\in P]-1$. At $p=\frac12$, $\gamma=0$ if and only if $\sum_{s\in P}\bigl[\binom{k-1}{s-1}-\binom{k-1}s\bigr]=0$. For the odd numbers both sums are $2^{k-2}$ when $k\ge2$: yes. So is any $P$ that contains $k-s$ with $s$.
# :::
#
# :::{exercise}
# :label: ex-08-even
#
# By hand: why must $k$ be odd in the parity mixture? What is $\gamma$ for even $k$?
# :::
#
# :::{solution} ex-08-even
# :class: dropdown
#
# For even $k$ all and none are both even counts, with the same label $-1$, so that the structured half says nothing about the label: $\gamma=0$, the classes are no longer balanced, and the first gradient has no signal although the inputs have structure. Structure has to be *correlated with the label*.
# :::
#
# :::{exercise}
# :label: ex-08-samples
#
# By hand: how many points does {eq}`eq-08-noise` ask for to get a cosine of 0.99 with $D=1000$, $k=5$, $p_o=\frac12$? How many statistical queries does {prf:ref}`thm-08-sq` ask for without structure?
# :::
#
# :::{solution} ex-08-samples
# :class: dropdown
#
# $\cos=0.99$ is $\rho=0.1425$. $\rho^2=\frac{995/4}{5n/16}$, so $n=\frac{796}{0.0203}\approx39{,}200$, ten times as many as for $D=100$. Without structure $\frac12\binom{1000}5^{1/3}\approx10^4$ queries, which grows like $D^{k/3}$.
# :::
#
# :::{exercise}
# :label: ex-08-threshold
#
# Re-run the chapter with three relevant patterns. Which claim that speaks of a reference line changes, and why?
# :::
#
# :::{solution} ex-08-threshold
# :class: dropdown
#
# `mvnb run 08 -p n_relevant=3`. The best threshold now has $\frac12+\frac12\cdot\frac58=0.81$: on uniform points a rising threshold on $s\in\{0,..,3\}$ gets the parity right with probability at most $\frac58$ (a falling one has $\frac34$ there, but is wrong on the other half). The claims about random features and the tangent kernel have fixed limits that were set for $k=5$; with $k=3$ the parity is a cubic function, and the tangent kernel comes closer.
# :::

# %% [markdown]
# <a id="08-further"></a>
# ## Further reading
#
# - Daniely and Malach ([Daniely and Malach, 2020](../book/references.bib#daniely2020parities)) had the parity mixture before, with an identity dictionary, and prove that a network learns it where kernels cannot; the lower bound here is theirs. Malach et al. ([Malach et al., 2021](../book/references.bib#malach2021quantifying)) ask how much the start of training and the tangent kernel help.
# - The first large gradient step as a source of features is studied for Gaussian inputs by Ba et al. ([Ba et al., 2022](../book/references.bib#ba2022onestep)) and Damian, Lee and Soltanolkotabi ([Damian et al., 2022](../book/references.bib#damian2022representations)).
# - [The next chapter](09_gradient_features.ipynb) turns these two steps into a framework; [chapter 5](05_local_signal_adaptivity.ipynb) has another network that denoises where its tangent kernel cannot, and [chapter 6](06_decision_lists.ipynb) another large step that writes what it has to learn into a matrix.
