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
# # Midpoint Mixup learns every view
#
# > *Provably Learning Diverse Features in Multi-View Data with Midpoint Mixup*, Muthu Chidambaram, Xiang Wang, Chenwei Wu
# > and Rong Ge {cite}`chidambaram2024midpoint`.
#
# When every class can be recognised by either of two features, gradient descent on the cross-entropy of single points
# (**ERM**, empirical risk minimisation) learns *one* of them for almost every class and then stops, because nothing is left to correct. Trained on the
# midpoints of pairs of points instead (**Midpoint Mixup**), the same network learns *both* features of *every* class: a
# midpoint punishes any output that depends on how much of which feature a point happened to show. Training accuracy does not tell
# the two apart; they differ in what they know.
#
# ```{glue:figure} 01-paths
# :alt: Two panels. Under ERM nearly every class's path runs along one axis, so one correlation grows and the other stays near zero. Under Midpoint Mixup the paths end close to the diagonal, where both correlations are equal; one has not left its start.
# :name: fig-01-paths
#
# Each line is one class of one of four networks, drawn over training: how strongly the class's best filter responds to its
# first and to its second feature. ERM nearly always runs along an axis; Midpoint Mixup ends close to the diagonal, or, where a class is not learned yet, still at the origin.
# ```
#
# The picture is computed [further down](#01-experiments), in about ten seconds.

# %% tags=["parameters"]
seed = 0  # first seed: replica r is the run with seed + r (integer, 0 or more)
replicas = 32  # ERM runs of the patch network, one stack (2 or more)
midpoint_replicas = 5  # how many of them Midpoint Mixup trains, too (2 or more)
device = "auto"  # "auto", "cpu" or "cuda"
n_classes = 8  # classes k of the patch data (3 or more)
n_filters = 16  # filters per class, m (1 or more)
n_points = 32  # training points N, as many per class (3 or more; n_classes or more)
n_patches = 1000  # patches per point, P (3 or more)
noise_coefficient = 0.006  # coefficient of feature noise, delta_3 = delta_4 (0 or more)
beta_low = 0.6  # smallest signal coefficient; largest 2 - beta_low (above 0, at most 1)
init_scale = 0.011  # initial correlations' standard deviation, 1/sqrt(d) (above 0)
act_power = 8  # exponent alpha of the smoothed ReLU (integer, 3 or more)
threshold = 0.1  # threshold rho of the smoothed ReLU (above 0)
linear_steps = 1000  # gradient steps of the linear model (1 or more)
erm_steps = 500  # gradient steps of ERM (40 or more)
midpoint_steps = 1000  # gradient steps of Midpoint Mixup (40 or more)
dim_exponent = 20  # exponent of the theorem's dimension, d = k^20 (4 to 60)
dim_replicas = 6  # runs there; Midpoint Mixup trains a third of them (2 or more)
dim_steps = 3600  # steps of Midpoint Mixup there; others take a third (3 or more)
dataset = "digits"  # or mnist5k, mnist, fashion_mnist, cifar10, cifar100
n_train = 2000  # training images used at most (10 or more; 0: all)
image_network = "small"  # "small" (three convolutions) or "resnet18" (the paper's)
image_epochs = 3  # passes over the training images (1 or more; the paper: 100)
image_batch = 100  # images per step (1 or more; the paper: 750)
image_step_size = 3e-3  # Adam's step size (above 0; the paper: 1e-3)
image_replicas = 5  # runs per method (2 or more; the paper: 5)
standin_classes = 20  # classes of the prototype mixture (2 or more, even)
standin_epochs = 40  # passes over its training points (1 or more)
standin_step_size = 8e-3  # Adam's step size there (above 0)
standin_replicas = 4  # runs per method and condition (2 or more)

# %% tags=["hide-input", "check"]
from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import torch
from scipy.integrate import solve_ivp

from mvnb import claims, figures, losses, probes, stats, training
from mvnb.data import MultiView, SimpleMultiView, load_images
from mvnb.models import (
    MLP,
    MLPObjective,
    PatchObjective,
    ResNet18,
    SmallConvNet,
    patch_logits,
)
from mvnb.papers.midpoint_mixup import theory
from mvnb.papers.midpoint_mixup.data import (
    ConcatenatedViews,
    PrototypeMixture,
    class_pairing,
    draw_companions,
)

figures.use_style()
ledger = claims.Ledger("midpoint_mixup")
device = training.pick_device(device)
print(f"device: {device.type}")

# %% tags=["hide-input", "check"]
# What may be wrong with the parameters shows here, before anything is trained.
raw = load_images(dataset).head(n_train, 0)
networks = {"small": SmallConvNet, "resnet18": ResNet18}
if image_network not in networks:
    raise ValueError(f"image_network must be small or resnet18, got {image_network!r}")
if n_points < n_classes:
    wanted = f"n_classes = {n_classes} or more"
    raise ValueError(f"n_points must be {wanted}, got {n_points}")
if standin_classes % 2:
    raise ValueError(f"standin_classes must be even, got {standin_classes}")
if len(raw.y_train.unique()) < load_images(dataset).n_classes:
    raise ValueError(f"n_train must leave images of every class, got {n_train}")

# %% [markdown]
# (01-question)=
# ## The question: what if there are two right answers?
#
# A car can be told from its wheels and from its windows. A learner that has found the wheels classifies every training
# photograph correctly, and has no reason to look for the windows, until it meets a car in deep grass. Allen-Zhu and Li
# {cite}`allenzhu2020towards` called such data *multi-view* and showed that a network trained on them learns the views at
# random, one lottery a class. The question of this chapter: *can the loss alone make one network learn all views?*
#
# The smallest case that already bites has two numbers. Let every class $y$ have two orthonormal features $v_{y,1}$,
# $v_{y,2}$ and let a point be
#
# $$
# x=\beta\,v_{y,1}+(1-\beta)\,v_{y,2},\qquad \beta\sim\mathrm{Uniform}[0.1,0.9].
# $$ (eq-01-simple)
#
# A linear model $g_y(x)=\langle w_y,x\rangle$ that treats all classes alike is described by the two correlations
# $c_\ell=\langle w_y,v_{y,\ell}\rangle$. **Predict before you look:** where in the $(c_1,c_2)$ plane is each loss small, and
# where does gradient flow go from a point on which the first feature is far ahead?


# %%
def landscape(c1, c2, n_classes, nodes=40):
    """Population losses (ERM, Midpoint Mixup) if every class has the correlations c1, c2."""
    node, weight = np.polynomial.legendre.leggauss(nodes)
    beta, weight = 0.5 + 0.4 * node, weight / 2
    # Own logit of a point
    own = np.asarray(c1)[..., None] * beta + np.asarray(c2)[..., None] * (1 - beta)
    erm = np.log1p((n_classes - 1) * np.exp(-own)) @ weight
    # What each end of a pair brings to the midpoint
    i, j = own[..., :, None] / 2, own[..., None, :] / 2
    different = np.log(n_classes - 2 + np.exp(i) + np.exp(j)) - (i + j) / 2
    same = np.log1p((n_classes - 1) * np.exp(-(i + j)))
    pairs = (1 - 1 / n_classes) * different + same / n_classes
    return erm, pairs @ weight @ weight


def flow(objective, start, n_classes, time):
    """Gradient flow of the symmetric linear model, from the correlations ``start``."""
    push = lambda t, c: theory.gradient_correlations(c, c, n_classes, objective)
    return solve_ivp(push, (0, time), start, method="LSODA", rtol=1e-6).y


# %% tags=["hide-input"]
grid = np.linspace(0, 30, 76)
surface = landscape(*np.meshgrid(grid, grid), 10)

# %% tags=["hide-input"]
fig, axes = plt.subplots(1, 2, figsize=(7.5, 3.7), sharey=True)
for ax, values, objective, name in zip(
    axes, surface, ("erm", "midpoint"), ("ERM", "Midpoint Mixup")
):
    excess = values - values.min()
    ax.contourf(grid, grid, np.log10(excess + 1e-3), 14, cmap="Greys_r")
    for start in ((4, 0.2), (12, 0.2), (24, 0.2), (0.2, 4), (0.2, 12), (0.2, 24)):
        path = flow(objective, start, 10, 3000)
        ax.plot(*path, color=figures.COLORS[name])
        ax.plot(*path[:, 0], "o", ms=4, color="white", mec=figures.COLORS[name])
        ax.plot(*path[:, -1], "s", ms=5, color=figures.COLORS[name])
    ax.set(
        title=name,
        xlabel="correlation $c_1$ with the first feature",
        xlim=(0, 30),
        ylim=(0, 30),
    )
    ax.set_aspect("equal")
axes[0].set_ylabel("correlation $c_2$ with the second")
figures.show(
    fig,
    title="ERM's push fades with its error; the midpoint's does not",
    alt="Two grey landscapes of the loss over the correlations c1 and c2 with gradient-flow "
    "paths of equal duration. ERM: the farther out a path starts, the less it moves, and none "
    "of those from far out reaches the diagonal. Midpoint "
    "Mixup: all paths arrive at the diagonal c1 = c2, along which the valley runs.",
)

# %% [markdown]
# White circles are starts, squares are ends after the same time; dark is low; $k=10$. Both losses prefer the diagonal. They differ in how hard they insist: ERM's push is
# proportional to its remaining error, so the further out the start, the less it moves, and the second feature waits. The midpoint loss has walls that do not flatten: at a midpoint of two classes, a model
# with $c_1\ne c_2$ prefers whichever class showed more of its favourite feature, and confidence in the wrong half of the label is expensive.
#
# (That linear ERM creeps on instead of stopping is no accident, and we come back to it: for the sharp separation of the
# theorems the network must be nonlinear. Under the flow, cross-class correlations leave 0, too; only the differences $\langle w_y-w_s,v_{y,\ell}\rangle$ act,
# and they follow these curves, faster by the factor $k/(k-1)$.)

# %%
# NBVAL_CHECK_OUTPUT
# The drawn surface and the flow's right-hand side are two derivations of one thing: check one against the other.
step, point = 1e-5, np.array([3.0, 1.2])
for row, objective in enumerate(("erm", "midpoint")):
    shifted = [point + s * step * np.eye(2)[axis] for axis in (0, 1) for s in (1, -1)]
    value = np.array([landscape(*p, 10)[row] for p in shifted])
    slope = -(value[0::2] - value[1::2]) / (2 * step)
    print(
        objective,
        np.abs(slope - theory.gradient_correlations(point, point, 10, objective)).max()
        < 1e-8,
    )

# %% [markdown]
# (01-world)=
# ## The world: signal patches among noise patches
#
# The theorems live in a harder world, in which no linear model classifies every possible point.
#
# ```{prf:definition} Multi-view patches
# :label: def-01-multi-view
#
# Fix orthonormal features $v_{y,\ell}$, $y\in[k]$, $\ell\in\{1,2\}$. A point is a tuple of $P$ patches in $\mathbb R^d$, drawn as
# follows.
#
# 1. The label $y$ is uniform on $[k]$.
# 2. $C_P$ patches hold the first feature, $x^{(p)}=\beta_p\,v_{y,1}$, and each has a partner that holds the second with the
#    mirrored coefficient, $x^{(\varphi(p))}=(\delta_2-\beta_p)\,v_{y,2}$. The $\beta_p$ are independent, symmetric about $\delta_2/2$ and
#    supported on $[\delta_1,\delta_2-\delta_1]$, and no set of measure $O(1/\log k)$ has more than $o(1)$ of their probability. Where the patches lie is arbitrary.
# 3. Every other patch is *feature noise*: a combination of both features of $Q$ other classes, with coefficients in
#    $[\delta_3,\delta_4]$.
# ```
#
# This is Definition 4.1 of the paper. Its Assumption 4.3 fixes the scales: $d=\Omega(k^{20})$, $P=\Theta(k^2)$, $\delta_{3},\delta_4=\Theta(k^{-3/2})$,
# $m=\Theta(k)$ filters per class, a threshold $\rho=\Theta(1/k)$ and exponent $\alpha=8$ in the activation below, and constants for $C_P,Q,\delta_1,\delta_2$. What matters are three relations: a signal coefficient is much larger
# than a noise coefficient; the noise *in sum*, $P\delta_3$, is much larger than the signal; and the ambient dimension is huge.
# The mirrored coefficients matter, too: each point shows a fixed total $C_P\delta_2$ of its class, and only the split varies.
#
# Two exact shortcuts make this world small enough to run. All patches lie in the span of the features, so gradients do too: the
# part of a filter outside that span never moves and never acts, and a filter *is* its $2k$ inner products with the features. Only
# the size of the initial ones, $\sigma=1/\sqrt d$, remembers $d$. And the noise patches of a point may all be equal, so that
# one copy with a multiplicity stands for a thousand.

# %%
world = MultiView(
    n_classes,
    n_patches,
    low=beta_low,
    noise_low=noise_coefficient,
    noise_high=noise_coefficient,
    slots=3,  # a point's two signal patches fall on two of the first three positions
    balanced=True,
)
toy = MultiView(4, 40, low=0.6, noise_low=0.12, noise_high=0.12, slots=3)
pair = toy.sample(2, torch.Generator().manual_seed(seed), y=torch.tensor([0, 2]))
print(
    "stored patches:",
    tuple(pair.x.shape),
    " multiplicities:",
    pair.multiplicity.int().tolist(),
)

# %% tags=["hide-input"]
fig, axes = plt.subplots(1, 3, figsize=(7.5, 2.9), sharey=True)
titles = ("a point of class 0", "a point of class 2", "their midpoint")
for ax, x, title in zip(axes, (pair.x[0], pair.x[1], pair.x.mean(0)), titles):
    rows = [f"$v_{{{y},{l}}}$" for y in range(4) for l in (1, 2)]
    columns = ["1", "2", "3", "4–40"]
    cells = figures.heatmap(ax, x.T, rows, columns, limits=(0, 1.4), cmap="Blues")
    ax.hlines((2, 4, 6), 0, 4, color="#bbbbbb", lw=0.8)
    ax.set(title=title, xlabel="patch")
axes[0].set_ylabel("feature")
fig.colorbar(cells, ax=axes, label="coefficient")
figures.show(
    fig,
    title="A midpoint has the features of both its points, at half their strength",
    alt="Three heat maps of features against patches. A point of class 0 has one patch with its first and one with its second "
    "feature and faint noise elsewhere; so has a point of class 2; their midpoint shows all four at half strength.",
)

# %% [markdown]
# Each column is a patch, and the last one stands for 37 patches that are alike. The faint columns are noise: weaker than the signal, but 38 of 40 here and 998 of 1000 in the runs.
# Where the signal patches of two points fall on the same position, a midpoint puts features of both classes into one patch; the jitter keeps that from happening every time.

# %% [markdown]
# (01-model)=
# ## The model and the two objectives
#
# The network slides $m$ filters per class over the patches and sums their responses {cite}`chidambaram2024midpoint`:
#
# $$
# g_y(x)=\sum_{r=1}^{m}\sum_{p=1}^{P} s\bigl(\langle w_{y,r},x^{(p)}\rangle\bigr),\qquad
# s(z)=\begin{cases}0&z\le0\\ z^\alpha/(\alpha\rho^{\alpha-1})&0\le z\le\rho\\ z-(1-1/\alpha)\rho&z\ge\rho.\end{cases}
# $$ (eq-01-network)
#
# The second layer is fixed to ones. The *smoothed ReLU* $s$ has a polynomial start of degree $\alpha=8$: it all but mutes
# small responses, which is how the network ignores a thousand noise patches, and it makes small filters grow at wildly different
# speeds, which is where the lottery comes from. The code evaluates no power of a negative or a large number:
#
# ```{literalinclude} ../src/mvnb/models/activations.py
# :pyobject: smoothed_relu
# :language: python
# ```
#
# With $\phi_y(g)=e^{g_y}/\sum_se^{g_s}$ and the midpoint $z_{ij}=(x_i+x_j)/2$, the two objectives are
#
# $$
# \begin{aligned}
# J(g)&=-\frac1N\sum_i\log\phi_{y_i}(g(x_i)),\\
# J_{MM}(g)&=-\frac1{2N^2}\sum_{i,j}\bigl[\log\phi_{y_i}(g(z_{ij}))+\log\phi_{y_j}(g(z_{ij}))\bigr].
# \end{aligned}
# $$ (eq-01-objectives)
#
# Mixup proper {cite}`zhang2018mixup` draws a weight $\lambda\sim\mathcal D$ per pair, $z_{ij}(\lambda)=\lambda x_i+(1-\lambda)x_j$, and mixes the labels
# alike: $J_M$ is the average of $-\lambda\log\phi_{y_i}-(1-\lambda)\log\phi_{y_j}$ at $z_{ij}(\lambda)$ over all pairs and $\lambda$. Its usual laws are $\mathrm{Beta}(a,a)$, with $a=1$ the uniform one; Midpoint Mixup is the limit $a\to\infty$. Differentiating
# {eq}`eq-01-objectives` once gives everything the proofs need:
#
# $$
# \begin{aligned}
# \nabla_{w_{y,r}}J_{MM}=-\frac1{2N^2}\sum_{i,j}&\bigl(\mathbb 1[y_i=y]+\mathbb 1[y_j=y]-2\phi_y(g(z_{ij}))\bigr)\\
# &\times\sum_p s'\bigl(\langle w_{y,r},z_{ij}^{(p)}\rangle\bigr)\,z_{ij}^{(p)},
# \end{aligned}
# $$ (eq-01-gradient)
#
# and $\nabla_{w_{y,r}}J=-\frac1N\sum_i\bigl(\mathbb 1[y_i=y]-\phi_y(g(x_i))\bigr)\sum_p s'(\langle w_{y,r},x_i^{(p)}\rangle)\,x_i^{(p)}$. The residuals are the whole story. On a point of its
# own class, ERM's residual $1-\phi_y$ is positive and fades as the class is learned. On a midpoint with another class, the residual
# $1-2\phi_y$ *changes sign* when class $y$ claims more than its half.

# %%
# NBVAL_CHECK_OUTPUT
# The training code uses the gradient written by hand; autograd on the losses as written above must agree.
check = training.stack(
    [world.sample(2 * n_classes, g) for g in training.generators(seed, 2)]
)
g, shape = torch.Generator().manual_seed(seed), (2, n_classes, 3, world.dim)
weight = 0.2 * torch.randn(shape, dtype=torch.float64, generator=g)
by_hand = PatchObjective(act_power, threshold, compute_dtype=torch.float64)
for name, loss, lam in (
    ("ERM", losses.cross_entropy, None),
    ("Midpoint", losses.midpoint_mixup, 0.5),
):
    value, grad = by_hand({"weight": weight}, *check, lam)
    for r in range(2):
        leaf = weight[r].clone().requires_grad_()
        f = lambda x, leaf=leaf: patch_logits(
            leaf, x, check.multiplicity[0], act_power, threshold
        )
        reference = loss(f, check.x[r], check.y[r])
        (auto,) = torch.autograd.grad(reference, leaf)
        print(
            name,
            abs(value[r] - reference).item() < 1e-12,
            (grad["weight"][r] - auto).abs().max().item() < 1e-12,
        )

# %% [markdown]
# (01-derivation)=
# ## The derivation, I: why the midpoint, in a linear model
#
# For the data {eq}`eq-01-simple`, write $p_\times$ for the fraction of ordered pairs whose labels differ.
#
# ```{prf:lemma} Equal correlations are optimal
# :label: lem-01-optimal
#
# Let a linear $g$ have $\langle w_y,v_{y,\ell}\rangle=c>0$ for all $y,\ell$, and $\langle w_y,v_{s,\ell}\rangle=0$ for $s\ne y$. Then
#
# $$
# \begin{aligned}
# J_{MM}(g)&=p_\times\log\bigl(2+(k-2)e^{-c/2}\bigr)+(1-p_\times)\log\bigl(1+(k-1)e^{-c}\bigr)\\
# &\to p_\times\log2\qquad(c\to\infty),
# \end{aligned}
# $$ (eq-01-optimal)
#
# which is the infimum of $J_{MM}$ over all functions. If, for any linear $g$, some class $y$ with two points and another class $s$ have $\Delta=\langle w_y-w_s,v_{y,1}-v_{y,2}\rangle\ne0$ (with zero cross-class correlations: if the two
# correlations of $y$ differ), then almost surely $J_{MM}(\gamma g)\to\infty$ as $\gamma\to\infty$.
# ```
#
# ```{prf:proof}
# A model that weighs both features alike cannot see how a point divides between them, so every midpoint of two classes is
# a perfect tie; a model with $\Delta\ne0$ breaks some of the ties, and the larger its scale, the more that costs.
# *No function does better.* On a pair of different classes, $\phi_{y_i}+\phi_{y_j}\le1$ forces $\phi_{y_i}\phi_{y_j}\le\frac14$, so the pair
# contributes at least $\log2$; pairs of one class contribute at least 0. *The model reaches it.* Because the coefficients are mirrored,
# $g_{y}(x)=\beta c+(1-\beta)c=c$ for every point of class $y$, and 0 for the others. At a midpoint of two classes the two logits
# are $c/2$ and the rest 0, hence $-\log\phi=\log(2+(k-2)e^{-c/2})$ for both halves of the label; at a midpoint within a class the logit
# is $c$. *Necessity.* Take $i\ne i'$ in class $y$ and $j$ in class $s$. The differences
# $g_y(z_{ij})-g_s(z_{ij})$ and $g_y(z_{i'j})-g_s(z_{i'j})$ differ by $\frac12\Delta(\beta_i-\beta_{i'})$, which is almost surely not 0, so one of them
# is not 0. Along $\gamma g$ the softmax of that pair tends to 0 on one of its two labels, and its loss to infinity.
# ```
#
# So the loss has its infimum in the direction in which both features count the same. Would any other mixing law do?
#
# ```{prf:proposition} Pointwise optimality is special to the midpoint
# :label: prop-01-midpoint-only
#
# Let $\lambda\sim\mathcal D$ with $\Pr(\lambda\notin\{0,\frac12,1\})>0$ and let $g$ be as in {prf:ref}`lem-01-optimal`, of any scale $c>0$. Then
# $J_M(g)\ge\inf_hJ_M(h)+\epsilon_0$ with $\epsilon_0>0$ that depends on $\mathcal D$, $k$ and $p_\times\in(0,1)$ alone. For $k\ge3$, with
# $H(\lambda)=-\lambda\log\lambda-(1-\lambda)\log(1-\lambda)$,
#
# $$
# \begin{aligned}
# \epsilon_0\ \ge\ p_\times\min_{c>0}\ \mathbb E_\lambda\Bigl[&\log\bigl(k-2+e^{\lambda c}+e^{(1-\lambda)c}\bigr)\\
# &-\bigl(\lambda^2+(1-\lambda)^2\bigr)c-H(\lambda)\Bigr]>0 .
# \end{aligned}
# $$ (eq-01-gap)
# ```
#
# ```{prf:proof}
# The model has one free number, its scale $c$, and for $k\ge3$ none fits: at finite $c$ the absent classes keep some
# probability, and as $c\to\infty$ the smaller half of an uneven label loses all of it.
# The best any function can do on a cross-class pair is to output the mixed label, at the cost $H(\lambda)$; and one function can do so on all
# pairs at once, because a mixed point shows its label: its coordinates along the features of $y_i$ sum to $\lambda$. What $g$ pays beyond it is the Kullback–Leibler divergence from the label
# $(\lambda,1-\lambda)$ to its softmax, whose logits are $\lambda c$, $(1-\lambda)c$ and $k-2$ zeros: the bracket in {eq}`eq-01-gap`. For
# $k\ge3$ and finite $c$ the zeros keep some probability, so the divergence is positive; it is continuous in $c$; and as $c\to\infty$ the
# softmax tends to 0 on the smaller half of the label whenever $\lambda\notin\{0,\frac12,1\}$, so it diverges (Fatou). A positive continuous function that
# tends to infinity at one end and to a positive limit at $c\to0$ is bounded away from 0. For $k=2$ the divergence can vanish (next remark), but
# then $c$ is finite, and pairs within a class pay $\log(1+(k-1)e^{-c})>0$ each where they could pay nothing.
# ```
#
# ```{prf:remark} Three slips
# :label: rem-01-slips
# The paper calls equal correlations necessary without assuming that the cross-class ones vanish; but adding one vector to every $w_y$ changes them and no softmax.
# The paper asks that $\mathcal D$ be no *point mass* on 0, ½ or 1; a mixture of such point masses must be excluded too. And for $k=2$ with
# $\lambda\in\{\lambda_0,1-\lambda_0\}$ the scale $c=\log\frac{\lambda_0}{1-\lambda_0}/(2\lambda_0-1)$ matches every mixed label exactly: the cross-class
# excess is 0, and only the pairs within a class save the statement.
# ```

# %%
# NBVAL_CHECK_OUTPUT
# Lemma: the closed form against the loss of an actual sample, and its limit.
sample = SimpleMultiView(5).sample(60, torch.Generator().manual_seed(seed))
p_cross = theory.cross_pair_fraction(np.bincount(sample.y, minlength=5))
# w_y = v_{y,1} + v_{y,2}
equal = torch.eye(5, dtype=torch.float64).repeat_interleave(2, 1)
difference = []
for c in (0.5, 3.0, 20.0):
    measured = losses.midpoint_mixup(
        lambda x, c=c: x @ (c * equal).T, sample.x, sample.y
    )
    difference.append(abs(measured.item() - theory.midpoint_loss(c, 5, p_cross)))
print("closed form equals the sample's loss to 1e-12:", max(difference) < 1e-12)
excess_at_limit = theory.midpoint_loss(80.0, 5, p_cross) - theory.midpoint_infimum(
    p_cross
)
print("excess over the infimum at c = 80 below 1e-12:", excess_at_limit < 1e-12)

# Remark: k = 2, lambda in {0.8, 0.2}: the softmax of (0.8 c, 0.2 c) is (0.8, 0.2).
c = np.log(0.8 / 0.2) / 0.6
print(
    "two-point law, k = 2, is matched exactly:",
    np.isclose(1 / (1 + np.exp(-(2 * 0.8 - 1) * c)), 0.8),
)

# %% tags=["hide-input"]
shapes = np.geomspace(0.05, 3000, 60)
excess = {k: [theory.minimal_mixup_gap(k, a)[1] for a in shapes] for k in (3, 10, 100)}

# %% tags=["hide-input"]
fig, ax = plt.subplots(figsize=(7.5, 3.3))
for (k, gap), style in zip(excess.items(), (":", "-", "--")):
    ax.plot(shapes, gap, style, color=figures.COLORS["Beta Mixup"])
    ax.annotate(
        f"$k={k}$", (shapes[22], gap[22]), xytext=(0, 5), textcoords="offset points"
    )
    uniform = theory.minimal_mixup_gap(k, 1.0)[1]
    ax.plot(1, uniform, "o", color=figures.COLORS["Uniform Mixup"])
ax.annotate("uniform", (1, 0.02), color=figures.COLORS["Uniform Mixup"], ha="center")
ax.annotate(
    "midpoint ($a\\to\\infty$)",
    (3000, 0.09),
    color=figures.COLORS["Midpoint Mixup"],
    ha="right",
)
ax.set(
    xscale="log",
    xlabel="$a$ of the mixing law Beta$(a,a)$",
    ylabel="excess per cross-class pair (nats)",
    ylim=(0, None),
)
ax.set_title("Mixed labels fit equal correlations only in the limits")
figures.show(
    fig,
    alt="Smallest excess loss of the equal-correlation model against the Beta parameter a, for 3, 10 and 100 classes. It is "
    "positive, peaks between 1 and 5 and falls towards zero at both ends.",
)

# %% [markdown]
# The excess is positive for every $a$. It falls to zero at both ends: for $a\to\infty$, the midpoint, and for $a\to0$, where nothing is mixed. It says that
# the laws in between ask for more than a linear model can give, not that they pull features apart; the experiments below look at that.
#
# ### What moves a lagging feature
#
# Now let class $y$ be ahead on its first feature, $\Delta_y=\langle w_y,v_{y,1}-v_{y,2}\rangle>0$. What does each loss do about it?
#
# ```{prf:theorem} The gap always closes
# :label: thm-01-gap
#
# Let $z_{y,s}$ be the midpoint of independent points of classes $y$ and $s$ with coefficients $\beta_y$ and $\beta_s$, and let $\langle w_s,v_{a,\ell}\rangle=0$ for $s\ne a$. With $\tilde\beta=\beta_y-\frac12$ and
# $R_s=\sum_{a\ne y}e^{g_a(z_{y,s})-b}$, where $b=\frac14(\langle w_y,v_{y,1}\rangle+\langle w_y,v_{y,2}\rangle)$, the population gradient ($N\to\infty$) satisfies
#
# $$
# \begin{aligned}
# k\,\langle-\nabla_{w_y}J_{MM},\,v_{y,1}-v_{y,2}\rangle=\frac1k\sum_{s\ne y}\,&\mathbb E\bigl[(1-2\phi_y(g(z_{y,s})))\tilde\beta\bigr]\\
# {}+\frac2k\,&\mathbb E\bigl[(1-\phi_y(g(z_{y,y})))\tilde\beta\bigr],
# \end{aligned}
# $$ (eq-01-gap-gradient)
#
# $$
# \begin{gathered}
# \mathbb E\bigl[(1-2\phi_y)\tilde\beta\bigr]=-\frac1{0.8}\,\mathbb E_{\beta_s}\int_0^{0.4}\Bigl[\tanh\tfrac{u+\log R_s}2+\tanh\tfrac{u-\log R_s}2\Bigr]\tilde\beta\,d\tilde\beta,\\
# u=\tfrac12\tilde\beta\Delta_y .
# \end{gathered}
# $$ (eq-01-tanh)
#
# Both terms of {eq}`eq-01-gap-gradient` are negative when $\Delta_y>0$. If moreover $|\log R_s|\le\frac1{10}\Delta_y$ with probability at least
# $q$ for every $s$, the right-hand side of {eq}`eq-01-gap-gradient` is at most $-0.075\,q\,(1-\frac1k)\tanh(\Delta_y/10)$.
# ```
#
# ```{prf:proof}
# The more a point shows of the leading feature, the surer the model is of class $y$ and the smaller the residual; the push
# on the gap is the covariance of residual and coefficient, and therefore negative.
# *The identity.* In {eq}`eq-01-gradient` with $s'\equiv1$, a point $x_i$ of class $y$ has inner product $\beta_i-(1-\beta_i)=2\tilde\beta_i$ with $v_{y,1}-v_{y,2}$, any
# other point 0, and a midpoint averages the two. Ordered pairs with exactly one end in class $y$ come twice, and cancel the $\frac12$ of
# $\frac1{2N^2}\cdot\tilde\beta_i$; a pair inside the class has residual $2(1-\phi_y)$ and inner product $\tilde\beta_i+\tilde\beta_j$, and symmetry makes it
# $2(1-\phi_y)\cdot2\tilde\beta_i$ on average. So, for any sample,
#
# $$
# \begin{aligned}
# \langle-\nabla_{w_y}J_{MM},v_{y,1}-v_{y,2}\rangle&=\frac1{N^2}\sum_{y_i=y,\,y_j\ne y}(1-2\phi_y(g(z_{ij})))\tilde\beta_i\\
# &\quad+\frac{2}{N^2}\sum_{y_i=y,\,y_j=y}(1-\phi_y(g(z_{ij})))\tilde\beta_i ,
# \end{aligned}
# $$ (eq-01-gap-sample)
#
# and in expectation every pair of classes has weight $1/k^2$. *The sign.* $\phi_y$ increases in $\tilde\beta$ (its logit has slope $\Delta_y/2$, the other logits do
# not depend on $\tilde\beta$), so $1-2\phi_y$ and $1-\phi_y$ decrease; $\tilde\beta$ has mean 0, so both expectations are covariances of a decreasing
# with an increasing function: negative. *The integral.* The logit of $y$ at $z_{y,s}$ is
# $\tilde\beta\Delta_y/2+b$. Softmax does not change when $b$ is subtracted from every logit, which leaves $u$ for class $y$; so
# $1-2\phi_y=\frac{R_s-e^u}{R_s+e^u}=-\tanh\frac{u-\log R_s}2$. Folding the integral over $[-0.4,0.4]$ at 0 gives {eq}`eq-01-tanh`. *The
# rate.* The bracket is nonnegative, and decreasing in $|\log R_s|$. For $\tilde\beta\ge0.2$ we have $u\ge\Delta_y/10$, so where
# $|\log R_s|\le\Delta_y/10$ the bracket is at least $\tanh\frac{u+\Delta_y/10}2\ge\tanh\frac{\Delta_y}{10}$; and
# $\frac1{0.8}\int_{0.2}^{0.4}\tilde\beta\,d\tilde\beta=0.075$.
# ```
#
# The paper's Proposition 3.4 asserts more: that the *lagging correlation itself* is pushed up, $\langle-\nabla_{w_y}J_{MM},v_{y,2}\rangle\ge\Theta(1/k^2)$,
# as soon as $\Delta_y\ge\log k$. As printed that is false, since the gap can also close from above: a class that is far ahead of all others is pushed
# *down* along both features.
#
# ```{prf:corollary} Proposition 3.4, repaired
# :label: cor-01-lagging
#
# Under the conditions of {prf:ref}`thm-01-gap`, if also $\langle-\nabla_{w_y}J_{MM},v_{y,1}\rangle\ge0$, then
# $\langle-\nabla_{w_y}J_{MM},v_{y,2}\rangle\ge\frac{0.075}{k}\,q\,(1-\frac1k)\tanh(\Delta_y/10)$.
# ```
#
# ```{prf:proof}
# $\langle-\nabla,v_{y,2}\rangle=\langle-\nabla,v_{y,1}\rangle-\langle-\nabla,v_{y,1}-v_{y,2}\rangle$.
# ```
#
# Two hypotheses are added. The *sign* needs the first, which the paper itself assumes in its nonlinear proof (B.45); the *size* needs the second, on $R_s$: if $y$ is far ahead of half of the classes and far behind the others, both
# pushes are positive and exponentially small. ERM, by contrast, starves the lagging feature:
#
# ```{prf:proposition} ERM starves a lagging feature (Proposition 3.5)
# :label: prop-01-erm
#
# Under the same orthogonality, with $\langle w_y,v_{y,2}\rangle\ge0$ and $\Delta_y\ge C\log k$,
#
# $$
# \begin{aligned}
# 0\le\langle-\nabla_{w_y}J,v_{y,2}\rangle&=\frac1k\,\mathbb E\Bigl[\frac{(k-1)(1-\beta)}{e^{g_y(x)}+k-1}\Bigr]\\
# &\le\frac1{2k}\cdot\frac{k-1}{k^{C/10}+k-1}=O\bigl(k^{-C/10}\bigr).
# \end{aligned}
# $$ (eq-01-erm)
# ```
#
# ```{prf:proof}
# By orthogonality the other logits of a point of class $y$ are 0, so $1-\phi_y=(k-1)/(e^{g_y}+k-1)$, and
# $g_y(x)=\beta\langle w_y,v_{y,1}\rangle+(1-\beta)\langle w_y,v_{y,2}\rangle\ge\beta\Delta_y\ge0.1\,C\log k$. Finally $\mathbb E[1-\beta]=\frac12$.
# ```
#
# Under the conditions of {prf:ref}`cor-01-lagging` both pushes are positive, and the *size* is the difference: the midpoint's is at least of order $1/k$ however large the gap, ERM's falls below any power of
# $1/k$ as $C$ grows. (It is a factor $k$ smaller than the paper's bound $O(k^{-(C/10-1)})$: only every $k$-th point belongs to the class.)

# %%
# NBVAL_CHECK_OUTPUT
# The identity for samples, against autograd; then the gap statement and Prop. 3.4 over a grid of populations.
generator = torch.Generator().manual_seed(seed)
w = torch.zeros(5, 10, dtype=torch.float64)
for y in range(5):  # orthogonal across classes, otherwise random
    w[y, 2 * y : 2 * y + 2] = 4 * torch.rand(
        2, generator=generator, dtype=torch.float64
    )
leaf = w.clone().requires_grad_()
(grad,) = torch.autograd.grad(
    losses.midpoint_mixup(lambda x: x @ leaf.T, sample.x, sample.y), leaf
)
own = torch.stack([-(grad[y, 2 * y] - grad[y, 2 * y + 1]) for y in range(5)])
beta = sample.x[torch.arange(60), 2 * sample.y]
cross, same = theory.empirical_gap_gradient(
    beta.numpy(), sample.y.numpy(), w.view(5, 5, 2).numpy()
)
print(
    "gap identity equals autograd to 1e-12:",
    np.abs(cross + same - own.numpy()).max() < 1e-12,
)

# %%
# NBVAL_CHECK_OUTPUT
scales, sizes = np.array([1.0, 5, 8, 10, 20]), np.array([10, 100, 1000])
C, k_grid = np.meshgrid(scales, sizes)
alone = theory.linear_gradient_correlations(C, k_grid, "midpoint", "zero")
level = theory.linear_gradient_correlations(C, k_grid, "midpoint", "equal")
print(
    "k x push on the lagging feature; rows k = 10, 100, 1000, columns C = 1, 5, 8, 10, 20"
)
print("all other weights 0:")
print(np.round(alone[1], 3))
print("other classes equally far on both features:")
print(np.round(level[1], 3))
print(
    "gap gradient negative everywhere:",
    bool((alone[0] < alone[1]).all() and (level[0] < level[1]).all()),
)

# %% tags=["remove-cell"]
ledger.exact(
    "equal-correlations-optimal", error=max(difference), excess=float(excess_at_limit)
)
uniform, narrow = (theory.minimal_mixup_gap(10, a)[1] for a in (1.0, 3000.0))
ledger.exact("only-midpoint-pointwise", uniform=uniform, narrow=narrow)
ledger.exact("lagging-feature-pushed-up", float(alone[1].min()))
gap_gradient = max((alone[0] - alone[1]).max(), (level[0] - level[1]).max())
ledger.exact("gap-always-closes", float(gap_gradient))
erm_exact, erm_bound = theory.erm_gradient_bound(C, k_grid)
slope = stats.power_law_fit(sizes, erm_exact[:, -1]).slope
push = float((erm_exact / erm_bound).max())
ledger.exact("erm-starves-lagging-feature", slope=slope, push=push)

# %% [markdown]
# Read the tables from left to right. Where all other weights are 0, the push on the lagging feature turns negative as $C$ grows: Proposition 3.4 fails as printed. Where the other classes are level, it stays positive and levels off near $0.1/k$, above the bound of {prf:ref}`cor-01-lagging`, although for all but $C=1$ the leading feature is pushed down there, which the corollary excludes. The gap shrinks everywhere.
#
# ### Watching it: gradient descent from a gap
#
# Start every class with only its first feature, $w_y=5\log k\,v_{y,1}$, and descend both losses on the same samples ($k=5$, step 2). The theory predicts a
# fast closing gap for midpoints and a slow one for ERM.

# %%
gap_k, gap_n, gap_runs = 5, 25, 6
linear_world = SimpleMultiView(gap_k, balanced=True)
points = training.stack(
    [linear_world.sample(gap_n, g) for g in training.generators(seed, gap_runs)]
)
ahead = torch.zeros(gap_k, 2 * gap_k, dtype=torch.float64)
ahead[torch.arange(gap_k), 2 * torch.arange(gap_k)] = 5 * np.log(gap_k)
# Mean over classes: (R, 2)
own_pair = lambda p: probes.own_correlations(p["weight"][:, :, None]).squeeze(2).mean(1)

# %%
# One loss for both: Midpoint Mixup is ERM on the midpoints of all pairs, labels alike.
labels = torch.nn.functional.one_hot(points.y, gap_k).double()
midpoints = lambda v: ((v[:, :, None] + v[:, None]) / 2).flatten(1, 2)
linear = torch.nn.Linear(2 * gap_k, gap_k, bias=False)
gap_run = {}
for name, batch in (
    ("ERM", (points.x, labels)),
    ("Midpoint Mixup", (midpoints(points.x), midpoints(labels))),
):
    gap_run[name] = training.fit(
        training.stacked(
            linear, lambda f, x, target: losses.soft_cross_entropy(f(x), target)
        ),
        {"weight": ahead.expand(gap_runs, -1, -1).clone()},
        batch,
        steps=linear_steps,
        optimizer=training.GD(2.0),
        probes={"own": own_pair},
        log_at=training.log_steps(linear_steps, 41),
    )
gap = {
    name: (run.log["own"][..., 0] - run.log["own"][..., 1]).numpy()
    for name, run in gap_run.items()
}

# %% tags=["hide-input"]
fig, ax = plt.subplots(figsize=(7.5, 3.1))
for name, values in gap.items():
    ax.plot(gap_run[name].steps, values, color=figures.COLORS[name], alpha=0.5, lw=1)
    ax.annotate(
        name,
        (linear_steps, values[-1].mean()),
        xytext=(6, -3),
        textcoords="offset points",
        color=figures.COLORS[name],
    )
ax.set(
    xlabel="gradient step",
    ylabel="gap $\\Delta_y$, mean over classes",
    xlim=(0, 1.19 * linear_steps),
    ylim=(0, None),
)
ax.set_title(f"Midpoint Mixup closes the gap; ERM takes its time ({gap_runs} samples)")
figures.show(
    fig,
    alt="Gap between the two correlations over 1000 gradient steps, six samples. Midpoint Mixup falls from 8 to "
    "between 1.5 and about 3; ERM to between 4.8 and 6.5.",
)

# %% tags=["remove-cell"]
ratio = gap["Midpoint Mixup"][-1] / gap["ERM"][-1]
ledger.mean("midpoint-closes-gap-faster", ratio)

# %% [markdown]
# Each line is one sample. In 1,000 steps the midpoints close about three quarters of the gap in the mean, ERM less than a third; that is the difference in the size of the two pushes.
#
# ## The derivation, II: why the theorems need a network
#
# A linear model that is stuck on one feature would make a weak villain, since {prf:ref}`thm-01-gap` has a twin for ERM: its gap closes too, only slowly. And on the
# patch world a linear model fails altogether.
#
# ```{prf:proposition} Linear models fail (Proposition 4.4, with a sharp threshold)
# :label: prop-01-linear
#
# In {prf:ref}`def-01-multi-view` let $\beta\equiv\delta_2/2$, $Q=1$ and $\delta_3=\delta_4=\gamma$, and let every (label, noise class) pair occur. Put $c_s=C_P\delta_2/2$ and
# $c_n=(P-2C_P)\gamma$. If $k\ge3$, some $h_y(x)=\sum_p\langle w_y,x^{(p)}\rangle$ classifies every point correctly if and only if $c_n<c_s$.
# ```
#
# ```{prf:proof}
# Add each demand to the one with label and rival exchanged: the weights then enter through a single number, whose sign the
# noise of a third class fixes.
# Such an $h$ sees only the sum of the patches, $c_sV_u+c_nV_n$ for label $u$ and noise class $n$, with $V_b=v_{b,1}+v_{b,2}$. Write $M_{ab}=\langle w_a,V_b\rangle$ and
# $D_{us}=M_{uu}-M_{su}$. Fitting label $u$ with noise $n$ against $s\ne u$ demands
#
# $$
# c_s\,(M_{uu}-M_{su})>c_n\,(M_{sn}-M_{un}).
# $$ (eq-01-demand)
#
# With $n=s$ this reads $c_sD_{us}>c_nD_{su}$; exchanging $u$ and $s$ and adding, $(c_s-c_n)(D_{us}+D_{su})>0$. With a third class as the noise, exchanging $u$ and
# $s$ and adding makes the right-hand sides cancel: $c_s(D_{us}+D_{su})>0$. Together $c_n<c_s$. Conversely, if $c_n<c_s$ then $w_y=V_y$ gives the label $2c_s$, the noise
# class $2c_n$ and every other class 0.
# ```
#
# With two classes there is no third: the noise betrays the label, and a linear model uses it whenever $c_n\ne c_s$. In the paper's scaling
# $c_n/c_s\approx P\gamma=\Theta(\sqrt k)$, beyond the threshold by far; in our runs it is as printed below. (A training set of $N=32$ points misses many of the pairs and may be fitted linearly all the same; it is on fresh points that a linear model then fails.)

# %%
# NBVAL_CHECK_OUTPUT
# Has the linear program a solution at these ratios of noise to signal?
ratios = (0.5, 0.9, 0.99, 1.01, 2.0)
verdicts = {k: [theory.separable(k, 1.0, r) for r in ratios] for k in (2, 3, 5)}
for k, row in verdicts.items():
    print(f"k = {k}: feasible at {ratios}: {row}")
print("noise/signal in the runs below:", round((n_patches - 2) * noise_coefficient, 2))

# %% tags=["remove-cell"]
as_stated = [verdicts[k][n] == (r < 1) for k in (3, 5) for n, r in enumerate(ratios)]
ledger.exact("linear-models-fail", np.mean(as_stated))

# %% [markdown]
# ## The derivation, III: the lottery that ERM plays
#
# Now the network {eq}`eq-01-network`. Let $\Lambda_{y,\ell}=\max_r\langle w_{y,r},v_{y,\ell}\rangle$ be the best filter's correlation with a feature. While all correlations are below the threshold, the
# polynomial part of $s$ acts, and off-diagonal correlations and noise barely count (they enter with the power $\alpha-1$ of a small number). The gradient along
# $v_{y,\ell}$ of the filter that attains $\Lambda_{y,\ell}$ is then $S_{y,\ell}\,(\Lambda_{y,\ell}/\rho)^{\alpha-1}$ times the residual, which is near $1-\frac1k$:
#
# $$
# \dot\Lambda_{y,\ell}=\Bigl(1-\frac1k\Bigr)\frac{S_{y,\ell}}{\rho^{\alpha-1}}\,\Lambda_{y,\ell}^{\alpha-1},\qquad S_{y,\ell}=\frac1N\sum_{y_i=y}\ \sum_{p\text{ shows }v_{y,\ell}}\beta_{i,p}^{\,\alpha}.
# $$ (eq-01-race)
#
# ```{prf:lemma} The race
# :label: lem-01-race
#
# The solution of $\dot x=c\,x^{q-1}$, $q>2$, $x(0)=x_0>0$ satisfies $x(t)^{-(q-2)}=x_0^{-(q-2)}-(q-2)\,c\,t$ and escapes to infinity at $T=\dfrac{x_0^{-(q-2)}}{(q-2)\,c}$. Of two
# such solutions with $T_1<T_2$, the slower one has grown, at the time the faster one escapes, only by the factor $(1-T_1/T_2)^{-1/(q-2)}$.
# ```
#
# ```{prf:proof}
# $\frac{d}{dt}x^{-(q-2)}=-(q-2)x^{-(q-1)}\dot x=-(q-2)c$. At $t=T_1$ the slower solution has $y^{-(q-2)}=y_0^{-(q-2)}(1-T_1/T_2)$.
# ```
#
# With $q=\alpha=8$ the lemma is drastic: a feature that would escape 10 % later than its rival has grown by a factor $11^{1/6}\approx1.49$ when the rival takes off. The paper quotes the
# discrete version with a polylogarithmic factor (its Lemma B.11, from {cite}`allenzhu2020towards`); the constant above is what that factor hides. So the race is decided at initialisation:
#
# $$
# \ell^*=\arg\max_\ell\ S_{y,\ell}^{1/(\alpha-2)}\,\Lambda_{y,\ell}^{(0)},\qquad
# T_{y,\ell}=\frac{\rho^{\alpha-1}\,\bigl(\Lambda^{(0)}_{y,\ell}\bigr)^{-(\alpha-2)}}{(\alpha-2)(1-\frac1k)S_{y,\ell}} .
# $$ (eq-01-winner)
#
# Since $\Lambda^{(0)}_{y,1}$ and $\Lambda^{(0)}_{y,2}$ are maxima of independent Gaussians, they lie within a factor $1+1/\log^2k$ of each other only with probability $O(1/\log k)$ {cite}`chernozhukov2015comparison`; that is the lottery.
#
# ```{explorer} 01-race
# :alt: Left, two correlations over time until the winner escapes. Feature 1, with a head start of two percent, takes off steeply at the very end, when feature 2 has grown by less than half. Right, falling curves of the loser's growth over the winner's lead, the lower the larger the exponent.
#
# *Predictions:* with $\alpha=8$ and a head start of 2 % the loser has grown by less than half when the winner escapes, and with one of 0.1 % it has a little more than doubled; with $\alpha=3$ the same 0.1 % let it grow a thousandfold. And a feature of half the strength wins with $\alpha=8$ if its head start exceeds 12 %, since only the root $S_{y,\ell}^{1/(\alpha-2)}$ counts. Let the time run: with $\alpha=8$ and 2 %, feature 1 is 15 % ahead at nine tenths of the way, and the rest happens in the last tenth.
# ```
#
# ```{prf:theorem} ERM learns one feature (Theorem 4.6)
# :label: thm-01-erm
#
# Under Assumption 4.3, for large $k$ and $N$ and a step $\eta=1/\mathrm{poly}(k)$, with probability $1-O(1/k)$, after $\mathrm{poly}(k)/\eta$ steps of gradient descent on $J$ and at all later polynomial times: (1) every
# training point is classified correctly; (2) for $(1-o(1))k$ classes exactly one feature is learned, that is, test points whose other feature is deleted keep their label, and not the other way round.
# ```
#
# ```{prf:proof}
# A class's filters all run on one clock, the sum of the class's residuals over time, and the feature that is learned first
# stops it long before the other one has had the time it needs.
# *(The skeleton; the bounds on off-diagonal correlations, Claims B.2–B.9 of the paper, are quoted.)* **The winner escapes.** By {prf:ref}`lem-01-race` the feature $\ell^*$ reaches the linear part of $s$ first, while
# the other one is still within a polylogarithmic factor of its initial size. **Then the class's clock stops.** Let $\tau_y(t)=\int_0^t(1-\phi_y)\,dt'$, averaged over the class: it is the
# only time that class $y$'s filters feel; {eq}`eq-01-race` has put $\tau_y=(1-\frac1k)\,t$ for the start. Once the winner is in the linear part, $\dot\Lambda_{y,\ell^*}=\Theta(1/k)\,\dot\tau_y$, so the class's output grows in proportion to
# $\tau_y/k$; but as soon as it exceeds $\log k$, $1-\phi_y\le ke^{-g_y}$, and therefore $g_y$, and with it $\tau_y/k$, can only grow like $\log t$. **So the loser never makes it.** It needs $\tau_y\ge(1-\frac1k)T_{y,3-\ell^*}$, but is granted only
# $\tau_y-(1-\frac1k)T_{y,\ell^*}=O(k\log t)$. The distance of the two times is at least $T_{y,\ell^*}/\mathrm{polylog}(k)$ unless the race was a near tie, which has probability $O(1/\log k)$, and
# $T\propto(\Lambda^{(0)})^{-(\alpha-2)}\propto d^{(\alpha-2)/2}$ is a huge power of $k$. Hence the loser stays within a polylogarithmic factor of its initial size for all polynomial times. **What the test sees.** With the winner deleted, what is left of the class's
# output is at most $m\,\tilde O(\Lambda^{(0)})^{\alpha}/\rho^{\alpha-1}=\tilde O(k^{-72})$, while a noise class whose winner is learned answers to $P$ patches of size $\delta_3$ with at least
# $P(\delta_3\log k/k)^\alpha/\rho^{\alpha-1}=\tilde\Omega(k^{-11})$, which is larger.
# ```
#
# The clock argument is ours; the paper bounds the same quantities step by step. It also tells what to expect at sizes a laptop can hold: the fraction of classes with one feature tends to 1 as the initial
# correlations shrink, and the exceptions are classes whose two escape times differ by no more than what a learned class still grants.
#
# ## The derivation, IV: why midpoints learn both
#
# ```{prf:theorem} Midpoint Mixup learns both features (Theorem 4.7)
# :label: thm-01-midpoint
#
# Under the same assumptions, with probability $1-O(1/k)$, after $\mathrm{poly}(k)/\eta$ steps of gradient descent on $J_{MM}$ and at all later polynomial times: (1) every original training point is classified correctly; (2) for **every**
# class both features are learned.
# ```
#
# Three facts carry the proof. The first is bookkeeping, the second is {prf:ref}`thm-01-gap` again, the third is new.
#
# ```{prf:lemma} Three facts about midpoints
# :label: lem-01-facts
#
# Let $A_{ys}=1-2\phi_y(g(z_{y,s}))$ be the residual of class $y$ on a midpoint of classes $y$ and $s$.
#
# 1. $A_{ys}+A_{sy}=2\sum_{u\ne y,s}\phi_u(g(z_{y,s}))\ge0$.
# 2. If the output of class $y$ increases with the coefficient $\beta_y$ and no other output depends on it, then $\mathbb E[A_{ys}(\beta_y-\mathbb E\beta_y)]\le0$, and likewise for $1-\phi_y$ on midpoints within the class.
# 3. If $A$ is a nondecreasing function of $X>0$ and $\mathbb E[AX]\ge0$, then $\mathbb E[AX^\alpha]\ge\mathbb E[AX]\,\mathbb E[X^{\alpha-1}]$ for $\alpha\ge1$.
# ```
#
# ```{prf:proof}
# (1) Probabilities sum to one. (2) A covariance of a decreasing and an increasing function of $\beta_y$, given $\beta_s$. (3) Move one factor $X$ into the law, so that two nondecreasing functions are left: let $\nu$ be the law with density $X/\mathbb E X$ with respect to that of $X$. Both $A$ and $X^{\alpha-1}$ are nondecreasing in $X$, so
# Chebyshev's inequality for similarly ordered functions gives $\mathbb E[AX^\alpha]=\mathbb E X\;\mathbb E_\nu[AX^{\alpha-1}]\ge\mathbb E X\;\mathbb E_\nu[A]\;\mathbb E_\nu[X^{\alpha-1}]=\mathbb E[AX]\;\mathbb E_\nu[X^{\alpha-1}]$. Finally
# $\mathbb E_\nu[X^{\alpha-1}]=\mathbb E[X^\alpha]/\mathbb E[X]\ge\mathbb E[X^{\alpha-1}]$, by the same inequality under the law of $X$ itself, and $\mathbb E[AX]\ge0$ keeps the direction.
# ```
#
# ```{prf:proof}
# While one feature is ahead, the residual is larger on midpoints that show more of the other one, so the other one is pushed
# for as long as the gap lasts.
# *(The skeleton for $C_P=1$. Quoted: off-diagonal correlations stay a factor $1/k$ below diagonal ones, Claims B.17 and B.18; outputs reach $\log k$, B.19 and B.20, and stay $O(\log k)$, B.27, whose engine is fact 1.)* As under ERM, one feature of each class escapes first; say the first. In the
# linear part of $s$ the class's output has slope $\Delta_y/2$ in $\beta_y-\delta_2/2$, as in the linear model, so fact 2 applies with $\Delta_y>0$. *The class does not stall in this state.* At a stationary point for a filter that has learned $v_{y,1}$,
# $\mathbb E[A\beta_y]\ge0$ up to small terms, with $A$ the residual summed over partners, the class itself included, and averaged given $\beta_y$. The mirrored coefficient is $\delta_2-\beta_y=\beta_y-2(\beta_y-\delta_2/2)$, so by fact 2
#
# $$
# \mathbb E\bigl[A\,(\delta_2-\beta_y)\bigr]=\mathbb E[A\beta_y]+2\,\bigl|\mathbb E[A(\beta_y-\tfrac{\delta_2}2)]\bigr|\ \ge\ \Theta(1),
# $$ (eq-01-mirror)
#
# the last step by the integral {eq}`eq-01-tanh` once $\Delta_y\ge\log k$, for partners with $|\log R_s|\le\Delta_y/10$; if instead $y$ lags behind all partners, $A$ itself is bounded below. *The lagging feature feels it.* A filter whose correlation with $v_{y,2}$ is still small sees this residual through the polynomial part, with
# $X^{\alpha}$ for $X=\delta_2-\beta_y$. Fact 3 (with $A$ increasing in $X$) turns {eq}`eq-01-mirror` into $\mathbb E[AX^\alpha]\ge\Theta(1)$: its growth rate is that of {eq}`eq-01-race` up to a factor $1/k$, *for as long as the gap lasts*. No clock stops. So it escapes
# in polynomial time. After that both features are in the linear part and {prf:ref}`thm-01-gap` keeps the gap below $\log k$, while (1) and (2) of the statement follow from outputs of order $\log k$.
# ```
#
# Where ERM's residual *vanishes* once one feature is learned, the midpoint residual *changes sign* with the coefficient: it is larger where the lagging feature shows more.

# %%
# NBVAL_CHECK_OUTPUT
# Facts 1 and 3, and the race, by brute force.
rng = np.random.default_rng(seed)
logits = rng.normal(size=(1000, 6)) * 5
phi = np.exp(logits - logits.max(1, keepdims=True))
phi /= phi.sum(1, keepdims=True)
print(
    "fact 1:",
    np.abs((1 - 2 * phi[:, 0]) + (1 - 2 * phi[:, 1]) - 2 * phi[:, 2:].sum(1)).max()
    < 1e-12,
)
worst = np.inf
for _ in range(200):  # random increasing A, random law of X
    x = np.sort(rng.uniform(0.6, 1.4, 50))
    a = np.cumsum(rng.exponential(size=50)) - rng.uniform(0, 50)
    if (a * x).mean() >= 0:
        worst = min(worst, (a * x**8).mean() - (a * x).mean() * (x**7).mean())
print("fact 3, smallest slack is not negative:", worst >= -1e-9)
leader, follower = 0.02, 0.018
T = [theory.escape_time(x, 1.0, 10, 8, 0.1, np.inf) for x in (leader, follower)]
grown = (follower**-6 - 6 * 0.9 / 0.1**7 * T[0]) ** (-1 / 6) / follower
print(
    "race: growth of the loser",
    np.isclose(grown, (1 - T[0] / T[1]) ** (-1 / 6)),
    round(float(grown), 3),
)

# %% [markdown]
# (01-experiments)=
# ## The experiments
#
# ### Theorems 4.6 and 4.7, run
#
# The paper reports no experiment in its own world. Here is one. It keeps some of the theorem's relations (in sum the noise outweighs the signal sixfold, patch by patch it is a hundred times weaker, $\alpha=8$, full batches) and not others ($N\gg k^2$, $d\ge k^{20}$; the dimension has [a section of its own](#01-own-dimension)). All runs start together and are trained as one stack;
# the step follows the gradient flow, small where filters race and large where nothing moves, so that times below are flow times, the sum of the steps.
#
# **Prediction.** ERM: one feature for most classes, the one that {eq}`eq-01-winner` names, at the time it names. Midpoint Mixup: both features for every class it has learned at all; later than ERM, because only midpoints *within* a
# class, and with the patches in the same place, show a feature at full strength, and they are fewer than one in $k$.

# %%
generators = training.generators(seed, replicas)
data = training.stack([world.sample(n_points, g) for g in generators])
data = training.to_device(data, device)
start = torch.stack(
    [
        init_scale
        * torch.randn(n_classes, n_filters, world.dim, dtype=torch.float64, generator=g)
        for g in generators
    ]
).to(device)
# 50 fresh points a class, for the test of learning
fresh_labels = torch.arange(n_classes).repeat_interleave(50)
fresh = world.sample(
    len(fresh_labels), torch.Generator().manual_seed(seed + 10**6), y=fresh_labels
)
fresh = training.to_device(fresh, device)


# %%
def network(power):
    return lambda params, x, multiplicity: patch_logits(
        params["weight"], x, multiplicity, power, threshold
    )


def features_learned(params, power=act_power, test=fresh):
    """How many of its features, 0 to 2, each class has learned: (R, n_classes)."""
    logits_of = lambda x, multiplicity: network(power)(params, x, multiplicity)
    return (
        probes.learned_counts(probes.feature_accuracy(logits_of, test), threshold=0.9)
        .cpu()
        .numpy()
    )


def patch_probes(runs, power=act_power):
    """Best correlations (R, n_classes, 2); whether a class is fitted (R, n_classes)."""
    x, y, multiplicity = data.x[:runs], data.y[:runs], data.multiplicity[0]
    fitted = lambda p: (
        probes.class_accuracy(network(power)(p, x, multiplicity), y) == 1
    ).double()
    return {"best": lambda p: probes.max_correlation(p["weight"]), "fitted": fitted}


# %% [markdown]
# *Learned* is meant as in Definition 4.5: delete a class's other feature from fresh test points, and the label must survive on at least 90 % of them.

# %%
objective = PatchObjective(act_power, threshold)
erm = training.fit(
    objective,
    {"weight": start},
    tuple(data),
    steps=erm_steps,
    optimizer=training.FlowGD(
        max_step=400, relative=0.03, absolute=0.3, knee=threshold
    ),
    probes={"best": patch_probes(replicas)["best"]},
    log_at=training.log_steps(erm_steps, 101),
)
some = min(midpoint_replicas, replicas)
midpoint = training.fit(
    objective,
    {"weight": start[:some]},
    (*(part[:some] for part in data), 0.5),
    steps=midpoint_steps,
    optimizer=training.FlowGD(max_step=80, relative=0.1, absolute=0.3, knee=threshold),
    probes=patch_probes(some),
    log_at=training.log_steps(midpoint_steps, 101),
)

# %% tags=["hide-input"]
fig, axes = plt.subplots(1, 2, figsize=(7.5, 3.8), sharex=True, sharey=True)
for ax, run, name in zip(axes, (erm, midpoint), ("ERM", "Midpoint Mixup")):
    # (logged step, class of a run, feature)
    path = run.log["best"][:, :4].flatten(1, 2).numpy()
    ax.plot([0, 11], [0, 11], color="#bbbbbb", lw=1, ls="--")
    ax.plot(path[..., 0], path[..., 1], color=figures.COLORS[name], lw=0.9, alpha=0.7)
    ax.plot(path[-1, :, 0], path[-1, :, 1], "s", ms=4, color=figures.COLORS[name])
    ax.set(title=name, xlabel="best filter's correlation with feature 1")
    ax.set_aspect("equal")
axes[0].set_ylabel("with feature 2")
figures.show(
    fig,
    title="One line a class: ERM learns one feature, midpoints teach both",
    alt="Two panels of paths in the plane of the correlations with feature 1 and feature 2, 32 classes of four runs. ERM: nearly "
    "all paths run along one of the axes. Midpoint Mixup: nearly all paths end close to "
    "the diagonal, one is still at the origin.",
    glue="01-paths",
)

# %%
erm_learned, midpoint_learned = (
    features_learned(erm.params),
    features_learned(midpoint.params),
)
# Fitted through the last two fifths of the run
fitted_late = midpoint.log["fitted"][-40:].numpy().min(0) == 1
counts = {
    "ERM": np.bincount(erm_learned.ravel(), minlength=3),
    "Midpoint Mixup, fitted classes": np.bincount(
        midpoint_learned[fitted_late], minlength=3
    ),
    "Midpoint Mixup, all classes": np.bincount(midpoint_learned.ravel(), minlength=3),
}
for name, (none, one, both) in counts.items():
    print(
        f"{name:31s} none {none:3d}   one {one:3d}   both {both:3d}   of {none + one + both}"
    )
best_filter = probes.own_correlations(midpoint.params["weight"]).argmax(2).cpu().numpy()
together = (best_filter[..., 0] == best_filter[..., 1])[midpoint_learned == 2]
print(f"both features in one filter: {together.mean():.0%} of classes with both")

# %% [markdown]
# Read it off: under ERM almost every class has exactly one feature; under Midpoint Mixup a class that is fitted has both. The classes that Midpoint Mixup has not fitted yet (in the figure, the square at the origin) are late, not lost: their best initial correlation is small, and the
# escape time grows with its power $-6$. (With a larger `midpoint_steps` they come.) And the two features of a class sit in *one* filter; why, and that it need not be so, [comes further down](#01-own-dimension).
#
# Now the theory against each single class: does {eq}`eq-01-winner` name the right winner, and the right time? (A step that lets a filter grow by 3 % lags behind the flow; that alone accounts for a median
# error of several percent, and the error shrinks with the step.)

# %%
# Coefficients of the signal patches, (R, N, view, 1), read off the data; S and the predictions follow.
own_axes = torch.stack([2 * data.y, 2 * data.y + 1], -1)  # (R, N, view)
beta = data.x.amax(2).gather(2, own_axes)[..., None].cpu().numpy()
strength = np.stack(
    [
        theory.feature_strength(b, y, n_classes, act_power)
        for b, y in zip(beta, data.y.cpu().numpy())
    ]
)
initial = erm.log["best"][0].numpy()  # (R, n_classes, 2)
winner = theory.predicted_winner(strength, initial, act_power)
final = erm.log["best"][-1].numpy()
decided = erm_learned == 1
right = final.argmax(-1) == winner  # (R, n_classes)

# %%
# The correlation at which the largest signal leaves the polynomial part.
escaped = threshold / (2 - beta_low)
first = np.take_along_axis(initial, winner[..., None], -1)[..., 0]
predicted = theory.escape_time(
    first,
    np.take_along_axis(strength, winner[..., None], -1)[..., 0],
    n_classes,
    act_power,
    threshold,
    escaped,
)
track = np.take_along_axis(erm.log["best"].numpy(), winner[None, ..., None], -1)[
    ..., 0
]  # (T, R, n_classes)
time = erm.log["time"].numpy()
measured = stats.first_crossing_time(track, time, escaped, 2.0 - act_power)
r, y = np.nonzero(np.isfinite(measured))
measured = measured[r, y]
error = measured / predicted[r, y] - 1

both_times = theory.escape_time(
    initial, strength, n_classes, act_power, threshold, escaped
)
apart = np.abs(np.diff(both_times, axis=-1))[..., 0]  # time between the two escapes

# %% tags=["hide-input"]
fig, ax = plt.subplots(figsize=(7.5, 3.5))
line = predicted[r, y][np.isfinite(predicted[r, y])]
line = np.array([line.min(), line.max()]) if len(line) else np.ones(2)
ax.plot(line, line, color=figures.COLORS["theory"], lw=1.2)
ax.plot(predicted[r, y], measured, "o", ms=3.5, alpha=0.6, color=figures.COLORS["ERM"])
ax.annotate(
    "theory", line[[1, 1]], xytext=(2, -24), textcoords="offset points", ha="right"
)
ax.set(
    xscale="log",
    yscale="log",
    xlabel="predicted escape time of the winner (flow time)",
    ylabel="measured",
)
ax.set_title(
    f"The initial weights decide when a class is learned ({len(measured)} classes)"
)
figures.show(
    fig,
    alt="Measured against predicted escape time on logarithmic axes for all classes of all ERM runs, over four decades; the "
    "points lie on the diagonal or just above it.",
)
hits = right[decided]
print("winners named correctly:", f"{hits.mean():.3f} of {hits.size}")
print("median |measured/predicted - 1|:", f"{np.median(np.abs(error)):.3f}")
if (erm_learned == 2).any():
    print(f"escapes apart, both learned: at most {apart[erm_learned == 2].max():.0f}")
print(f"escapes apart, one learned: median {np.median(apart[decided]):.0f}")


# %% tags=["remove-cell"]
def share(hits, among):
    """Share of some classes that are hits, for each run; none is no success."""
    return (hits & among).sum(1) / np.maximum(among.sum(1), 1)


erm_fitted = patch_probes(replicas)["fitted"](erm.params).cpu().numpy() == 1
ledger.mean("erm-one-feature", (erm_learned == 1).mean(1))
ledger.mean("erm-fits", erm_fitted.mean(1))
ledger.mean("midpoint-both-features", share(midpoint_learned == 2, fitted_late))
ledger.mean("midpoint-fits", (midpoint.log["fitted"][-1].numpy() == 1).mean(1))
ledger.mean("winner-decided-at-start", share(right, decided))
total = probes.total_correlation(
    midpoint.params["weight"].cpu(), 2 * threshold / beta_low
)
balance = probes.balance(total).numpy()
ledger.mean(
    "midpoint-equal-features",
    [np.median(b[m]) if m.any() else 0.0 for b, m in zip(balance, fitted_late)],
)
off = [np.abs(error[r == run]) for run in range(replicas)]  # of the classes that escape
ledger.mean("escape-time", [np.median(one) if one.size else 1.0 for one in off])

# %% [markdown]
# The initial weights name the winner of every class that has learned one feature, and the escape times lie along the line, a little above it, over four decades. The exceptions are near ties: where ERM has learned both features, their two predicted escapes lie close together in time, several times closer than those of a typical class with one.
#
# ### How sharp is the lottery? Exponent and dimension
#
# Two knobs of Assumption 4.3 should matter. By {prf:ref}`lem-01-race` the loser's growth is $(1-T_1/T_2)^{-1/(\alpha-2)}$ with $T\propto\Lambda^{-(\alpha-2)}$: a large exponent $\alpha$ spreads the escape times and
# mutes the loser. And small initial weights, that is, a large ambient dimension $d=1/\sigma^2$, stretch the race while the time that a learned class still grants stays fixed. **Prediction:** the fraction of classes with exactly one
# feature rises with both.

# %%
sweep_runs = max(2, min(6, replicas))


def one_feature(power, scale):
    """Share of a run's classes with exactly one feature under ERM, of each run."""
    optimizer = training.FlowGD(
        relative=0.05,
        absolute=0.3,
        knee=threshold,
        horizon=1e5
        * (0.011 / scale) ** (act_power - 2),  # escape times scale like this
    )
    run = training.fit(
        PatchObjective(power, threshold),
        {"weight": start[:sweep_runs] * (scale / init_scale)},
        tuple(part[:sweep_runs] for part in data),
        steps=erm_steps * 3 // 2,
        optimizer=optimizer,
    )
    return (features_learned(run.params, power) == 1).mean(1)


# %%
here = (erm_learned == 1).mean(1)
powers, scales = (3, 4, 6, act_power), (0.03, 0.02, init_scale, 0.006, 0.003)
by_power = [*(one_feature(power, init_scale) for power in powers[:3]), here]
by_scale = [here if s == init_scale else one_feature(act_power, s) for s in scales]

# %% tags=["hide-input"]
fig, axes = plt.subplots(1, 2, figsize=(7.5, 3.1), sharey=True)
panels = (
    (axes[0], powers, by_power, "exponent $\\alpha$ of the activation"),
    (
        axes[1],
        [f"{1 / s**2:,.0f}" for s in scales],
        by_scale,
        "ambient dimension $d=1/\\sigma^2$",
    ),
)
for ax, labels, rows, xlabel in panels:
    estimate, half = np.transpose([stats.mean_interval(row) for row in rows])
    style = {"yerr": half, "fmt": "o", "capsize": 4}
    ax.errorbar(
        [str(x) for x in labels], estimate, color=figures.COLORS["ERM"], **style
    )
    ax.set(xlabel=xlabel, ylim=(0, 1.02))
axes[0].set_ylabel("share with exactly one feature")
figures.show(
    fig,
    title="A steeper activation and a higher dimension sharpen the lottery",
    alt="Fraction of classes with exactly one learned feature under ERM, with intervals. It rises with the exponent from near 0 "
    "at 3 to about 0.9 at 8, and with the ambient dimension to nearly 1.",
)

# %% tags=["remove-cell"]
rise = here[:sweep_runs] - by_power[0]
ledger.mean("exponent-makes-the-lottery", rise=rise, share=by_power[0])

# %% [markdown]
# Both parts of the prediction come true: at exponent 3 hardly a class has exactly one feature, at 8 about nine in ten; and in the largest dimension nearly all.
#
# (01-own-dimension)=
# ### In the theorem's own dimension
#
# Assumption 4.3 asks for $d\ge k^{20}$, at $k=8$ more than $10^{18}$. No computer stores one such filter, and none has to: in feature coordinates a filter is $2k$ numbers drawn from $\mathcal N(0,1/d)$ and the norm of a rest that neither
# acts nor moves. Three things change on the way there.
#
# - *Numbers.* The first pushes are of the order $(\sigma/\rho)^{7}\approx10^{-56}$, so products are done in double precision.
# - *Noise.* Escape times grow like $\sigma^{-6}$, here to $10^{45}$ and beyond. Meanwhile the features that ERM has learned creep up like the logarithm of time, to correlations above 100, and the noise patches must stay below the threshold even then. We make them $30$ times weaker and $30$ times more, which
#   leaves their sum as it was and costs nothing.
# - *Time.* ERM's push on what is learned fades, so its steps may grow as time goes by. The midpoint's does not fade: learned filters settle at an optimum within a time of the order $10^2$, and an explicit step of the flow cannot be longer than that. But a filter that races for a time
#   of $10^{45}$ sees the learned ones *settled*. So every filter beyond the threshold gets a clock of its own, and time is set by the others. It is what the flow tends to as the weights shrink. At $\sigma=0.011$, where both can be run, it teaches the same features, and with steps of 3 % nine escape times in ten are the flow's to within a factor of 2. The steps below are longer: a filter may grow by $r=30$ %, and one that sets the steps is then late by the factor $6r/(1-(1+r)^{-6})\approx2.3$, a sum in the place of an integral. That is nothing on a scale of 45 decades.
#
# And one thing can be taken apart. The theorem holds wherever the signal patches lie. With jittered places, a midpoint of two points of a class may put *both* features into one patch; with fixed places, the first feature on patch 1 and the second on patch 2, it never does.
#
# **Prediction.** What was true of most classes is true of all: one feature under ERM, both under Midpoint Mixup. But a filter that has learned the first feature sees a patch with both at full slope, so with jittered places the second should come at once and in the *same* filter; with fixed places it has
# to wait until another filter escapes by itself.

# %%
theorem_dim = float(n_classes) ** dim_exponent
dim_generators = training.generators(seed + 3 * 10**6, dim_replicas)
dim_test, dim_data = {}, {}
for placement in ("fixed", "jittered"):
    quiet = replace(
        world,
        n_patches=30 * n_patches,
        noise_low=noise_coefficient / 30,
        noise_high=noise_coefficient / 30,
        placement=placement,
        slots=3 if placement == "jittered" else None,
    )
    sample = training.stack([quiet.sample(n_points, g) for g in dim_generators])
    dim_data[placement] = [part.to(device) for part in sample]
    sample = quiet.sample(len(fresh_labels), dim_generators[0], y=fresh_labels)
    dim_test[placement] = training.to_device(sample, device)
coordinates, rest = zip(
    *(
        training.random_coordinates(
            (n_classes, n_filters), world.dim, theorem_dim, theorem_dim**-0.5, g
        )
        for g in dim_generators
    )
)
dim_start = torch.stack(coordinates).to(device)
print(f"d = {theorem_dim:.3g}; coordinates of a filter: {dim_start.std():.2g};")
print(f"norm of what lies outside: {torch.stack(rest).mean():.6f}")

# %%
# Escape times grow like sigma^-6 = d^3; in this unit they are those at sigma = 0.011.
unit = (theorem_dim * 0.011**2) ** 3
racing = {"knee": threshold, "relative": 0.3}
settings = {  # placement, runs, steps, mixing, how to step
    "ERM, fixed places": (
        *("fixed", dim_replicas, dim_steps // 3, ()),
        training.FlowGD(absolute=5, horizon=1e5 * unit, **racing),
    ),
    "Midpoint Mixup, fixed places": (
        *("fixed", (dim_replicas + 2) // 3, dim_steps, (0.5,)),
        training.FlowGD(absolute=0.5, relax=80, horizon=1e8 * unit, **racing),
    ),
    "Midpoint Mixup, jittered places": (
        *("jittered", (dim_replicas + 2) // 3, dim_steps // 3, (0.5,)),
        training.FlowGD(absolute=0.5, relax=80, horizon=1e8 * unit, **racing),
    ),
}


# %%
def all_learned(params, losses):
    """Runs that have nothing left to learn: every feature is far beyond the threshold."""
    best = probes.max_correlation(params["weight"])  # (R, n_classes, 2)
    return (best > 10 * threshold).flatten(1).all(1)


dim_run, dim_learned, same_filter = {}, {}, {}
for name, (placement, runs, steps, mixing, optimizer) in settings.items():
    run = training.fit(
        PatchObjective(act_power, threshold, torch.float64),
        {"weight": dim_start[:runs]},
        (*(part[:runs] for part in dim_data[placement]), *mixing),
        steps=steps,
        optimizer=optimizer,
        probes={"best": lambda p: probes.max_correlation(p["weight"])},
        log_at=training.log_steps(steps, 401),
        until=all_learned,
    )
    dim_run[name] = run
    dim_learned[name] = features_learned(run.params, test=dim_test[placement])
    best_filter = probes.own_correlations(run.params["weight"]).argmax(2).cpu()
    same_filter[name] = (best_filter[..., 0] == best_filter[..., 1]).numpy()
    none, one, both = np.bincount(dim_learned[name].ravel(), minlength=3)
    print(f"{name:32s} none {none:2d}   one {one:2d}   both {both:2d}")
jittered = "Midpoint Mixup, jittered places"
print(f"jittered: both features in one filter for {same_filter[jittered].mean():.0%}")

# %% tags=["hide-input"]
fig, axes = plt.subplots(1, 3, figsize=(7.5, 3.2), sharex=True, sharey=True)
for ax, (name, run) in zip(axes, dim_run.items()):
    color = figures.COLORS[name.split(",")[0]]
    clock = run.log["time"][:, 0].numpy() / unit
    best = run.log["best"][:, 0].numpy()  # (T, n_classes, 2)
    order = best[-1].argsort(-1)
    for rank, style in ((1, "-"), (0, "--")):
        lines = np.take_along_axis(best, order[None, :, rank, None], -1)[..., 0]
        ax.plot(clock, lines, style, color=color, lw=1)
    ax.axhline(threshold, color="#999999", lw=0.8)
    ax.set(xscale="log", yscale="log", xlim=(1e2, 1e8))
    ax.set_title(name.replace(", ", "\n"), fontsize=10.5)
axes[1].set_xlabel(r"flow time, in units of $(0.011/\sigma)^6$")
axes[0].set_ylabel("best correlation with a feature")
figures.show(
    fig,
    title=r"At $d=k^{20}$: half of the features, all of them in turn, or in pairs",
    alt="Best correlations of one network's classes with their two features against flow time, both axes logarithmic, at d of "
    "about 10 to the 18; solid for the stronger feature, dashed for the weaker. All start near 10 to the minus 9 and jump above "
    "the threshold. ERM: only the solid lines jump. Midpoint Mixup with fixed places: dashed lines jump later than the solid "
    "ones. With jittered places: each dashed line jumps together with its solid one, or nearly.",
)

# %% [markdown]
# Each class has a solid line for its stronger feature and a dashed one for its weaker; the grey line is the threshold $\rho$. A vertical stretch is a filter that crosses eight orders of magnitude in a small part of the time that it waited. Under ERM the weaker feature stays where it was drawn: when its turn would come, the class has long
# been fitted. Under Midpoint Mixup with fixed places it has its turn, up to hundreds of times later. With jittered places it hardly waits. So the runs of the preceding sections, with jittered places, took a short cut that the theorem does not need; what ERM
# misses and Midpoint Mixup finds is the same either way.

# %% tags=["remove-cell"]
for id, name, learned in (
    ("erm-one-feature-own-dimension", "ERM, fixed places", 1),
    ("midpoint-both-own-dimension", "Midpoint Mixup, fixed places", 2),
    ("midpoint-both-at-once", jittered, 2),
):
    ledger.mean(id, (dim_learned[name] == learned).mean(1))

# %% [markdown]
# ### Is it the midpoint, or is it mixing?
#
# Proposition 3.3 singles the midpoint out, and the theorem covers it alone. What do the laws that people use do in the same world? Below, the same starts under $\mathrm{Beta}(a,a)$, a fresh weight for every pair at every step.

# %%
laws = {
    "Uniform": "uniform",
    "Beta(0.2, 0.2)": 0.2,
    "Beta(8, 8)": 8.0,
    "Midpoint": "midpoint",
}
shared = [0, 1] * len(laws)  # every law from the same two starts
law_of = np.repeat(list(laws), 2)
law_data = tuple(part[shared] for part in data)
law_generators = training.generators(seed + 2 * 10**6, len(shared))


def mixing_weights(step):
    """A fresh mixing weight for every pair, at every step."""
    shape = (n_points, n_points)
    lam = [
        losses.sample_mixing(laws[law], shape, g, torch.float32)
        for law, g in zip(law_of, law_generators)
    ]
    return (torch.stack(lam),)


# %%
drawn_weights = training.in_blocks(mixing_weights, device)
mixed = training.fit(
    objective,
    {"weight": start[shared]},
    lambda step: (*law_data, *drawn_weights(step)),
    steps=midpoint_steps * 3 // 10,
    optimizer=training.FlowGD(
        max_step=80, relative=0.1, absolute=0.3, knee=threshold, horizon=15000
    ),
)
learned = features_learned(mixed.params)
print(f"flow time reached: at least {mixed.log['time'][-1].min():.0f}")
for law in laws:
    none, one, both = np.bincount(learned[law_of == law].ravel(), minlength=3)
    print(
        f"{law:15s} none {none:2d}   one {one:2d}   both {both:2d}   of {none + one + both}"
    )

# %% [markdown]
# At about equal flow time (two runs each) every law has taught both features of most classes, and none of them falls behind the midpoint. The theorem is about the midpoint because the midpoint can be *analysed*; in this world the benefit seems to belong to mixing at large. That agrees with the paper's image
# experiment, where the uniform law does best.

# %% [markdown]
# ### Images with a spurious view
#
# The paper's Section 5 makes two-view images: to every training image $x$ of class $y$ a fixed image $e(x)$ of a fixed partner class is attached as extra channels, $[\gamma x,\,(1-\gamma)e(x)]$ with $\gamma$ uniform and
# redrawn at each access; test inputs are $[x,0]$. It trains a ResNet-18 on 50,000 images or more. The default here is a small network on 8×8 digits, which exercises every step and is *no evidence*: in so short a training neither Mixup is ahead of ERM.
# `-p dataset=cifar10` (or `mnist`, `fashion_mnist`, `cifar100`) runs the same comparison on the first 2,000 training images of the real set, `-p n_train=0` on all of them, and the preset `paper` at the paper's sizes.

# %%
images = raw.standardised()
companions = [
    draw_companions(images.y_train, class_pairing(images.n_classes, g), g)
    for g in training.generators(seed, image_replicas)
]
image_views = ConcatenatedViews(
    images.x_train.to(device).expand(image_replicas, *images.x_train.shape),
    torch.stack(companions).to(device),
)

fig, axes = plt.subplots(2, 6, figsize=(7.5, 2.7))
for column in range(6):
    for row, index in enumerate((column, int(companions[0][column]))):
        axes[row, column].imshow(
            raw.x_train[index].permute(1, 2, 0).squeeze(-1), cmap="gray", vmin=0, vmax=1
        )
        axes[row, column].set_title(f"class {images.y_train[index]}", fontsize=9)
        axes[row, column].axis("off")
figures.show(
    fig,
    title="Top: the image. Bottom: its companion from the partner class",
    alt="Six training images in a row, and below each a companion image from the class it is paired with.",
)

# %% tags=["hide-input"]
METHODS = {"ERM": None, "Midpoint Mixup": "midpoint", "Uniform Mixup": "uniform"}


def view_batches(views, y, law, batch, generators):
    """Batches (x, y) or (x, y, x2, y2, lam) of a stack of runs, each drawn on its own."""
    n, order = y.shape[-1], None

    def weights():
        return torch.stack([torch.rand(batch, generator=g) for g in generators])

    def draw(step):
        """Places and weights of views: of the points, and of those they are mixed with."""
        nonlocal order
        begin = step % (n // batch) * batch
        if begin == 0:
            order = torch.stack([torch.randperm(n, generator=g) for g in generators])
        first = order[:, begin : begin + batch], weights()
        if law is None:
            return first
        others = [torch.randint(n, (batch,), generator=g) for g in generators]
        lam = [losses.sample_mixing(law, (), g, torch.float32) for g in generators]
        return *first, torch.stack(others), weights(), torch.stack(lam)

    drawn = training.in_blocks(draw, y.device)

    def batches(step):
        index, weight, *mixed = drawn(step)
        first = views.train(index, weight), y.gather(1, index)
        if law is None:
            return first
        others, weight, lam = mixed
        return *first, views.train(others, weight), y.gather(1, others), lam

    return batches


# %%
def train_on_views(make, views, y, test_x, test_y, law, epochs, batch, step_size):
    """Test errors (%, one a run) of networks trained with Adam on two views, tested on one."""
    modules = []
    for r in range(len(y)):
        torch.manual_seed(seed + r)
        modules.append(make().to(device))
    params = training.stack_modules(modules)
    runs = training.generators(seed + 10**6, len(y))
    batch = min(batch, y.shape[-1])
    loss = losses.cross_entropy if law is None else losses.mixup
    by_hand = isinstance(modules[0], MLP)
    fitted = training.fit(
        MLPObjective() if by_hand else training.stacked(modules[0], loss),
        params,
        view_batches(views, y, law, batch, runs),
        steps=epochs * (y.shape[-1] // batch),
        optimizer=training.Adam(step_size),
        log_at=[0],
        progress=y.shape[-1] > 5000,
    )
    logits = training.predict(modules[0], fitted.params, test_x)
    return 100 * (1 - probes.accuracy(logits, test_y).cpu().numpy())


# %%
channels = 2 * images.x_train.shape[1]
image_errors = {
    name: train_on_views(
        lambda: networks[image_network](channels, images.n_classes),
        image_views,
        images.y_train.to(device).expand(image_replicas, -1),
        ConcatenatedViews.test(images.x_test)
        .to(device)
        .expand(image_replicas, -1, -1, -1, -1),
        images.y_test.to(device),
        law,
        image_epochs,
        image_batch,
        step_size=image_step_size,
    )
    for name, law in METHODS.items()
}

# %% [markdown]
# The paper's Table 1: test error in percent, mean ± standard deviation of five runs (as printed; no deviation is given where the cell shows none).
#
# | | Fashion-MNIST | CIFAR-10 | CIFAR-100 |
# |---|---|---|---|
# | Uniform Mixup | 9.66 | 18.52 ± 1 | 53.42 ± 1 |
# | Midpoint Mixup | 14.84 ± 1 | 22.29 ± 2 | 53.61 ± 2 |
# | ERM | 16.55 ± 2 | 27.77 ± 2 | 69.28 ± 2 |
#
# Ours:

# %% tags=["hide-input"]
PAPER = {  # Table 1: test error in percent, mean of five runs
    "fashion_mnist": {"ERM": 16.55, "Midpoint Mixup": 14.84, "Uniform Mixup": 9.66},
    "cifar10": {"ERM": 27.77, "Midpoint Mixup": 22.29, "Uniform Mixup": 18.52},
    "cifar100": {"ERM": 69.28, "Midpoint Mixup": 53.61, "Uniform Mixup": 53.42},
}
print(f"{dataset}: test error in percent, {image_replicas} runs, 95 % half-width")
for name, errors in image_errors.items():
    beside = f"   paper: {PAPER[dataset][name]:.2f}" if dataset in PAPER else ""
    print(
        "{:16s} {:6.2f} ± {:4.2f}".format(name, *stats.mean_interval(errors)) + beside
    )
for name in ("Midpoint Mixup", "Uniform Mixup"):
    mean, half = stats.mean_interval(image_errors["ERM"] - image_errors[name])
    print(f"ERM minus {name}: {mean:+.2f} ± {half:.2f} points, paired")

# %% tags=["remove-cell"]
for id, name in (
    ("images-midpoint-beats-erm", "Midpoint Mixup"),
    ("images-uniform-beats-erm", "Uniform Mixup"),
):
    ledger.mean(id, image_errors["ERM"] - image_errors[name])

# %% [markdown]
# ### A case where Mixup leads, and what its lead is made of
#
# To see both Mixups ahead of ERM, as in Table 1, in seconds we need a task with more classes and with a companion that can mislead. *Stand-in*: each class has three prototypes on the unit sphere in $\mathbb R^{64}$, a point is one of them plus noise,
# and companion and $\gamma$ are as above; the network is a multilayer perceptron. This stand-in was chosen because it shows that lead after digits did not (which of the Mixups is ahead of the other it does not settle): read it as *a case where it holds*.
#
# The paper's tables lack a control, and here it costs nothing: the same training with the companion replaced by zeros. If the advantage of Mixup is that it resists the spurious view, it should go away with the view.


# %%
def mixture_runs(spurious):
    """Views, labels and test inputs of a prototype mixture, the same with and without a view."""
    points, companions, labels, tests = [], [], [], []
    for g in training.generators(seed, standin_replicas):
        mixture = PrototypeMixture.draw(standin_classes, 3, 64, 1.5, g)
        x, y = mixture.sample(40, g)
        points.append(x)
        labels.append(y)
        tests.append(ConcatenatedViews.test(mixture.sample(40, g)[0]))
        companions.append(draw_companions(y, class_pairing(standin_classes, g), g))
    stacks = (points, companions, labels, tests)
    points, companions, labels, tests = (torch.stack(one).to(device) for one in stacks)
    return ConcatenatedViews(points, companions, spurious), labels, tests


standin = {}
compared = ("ERM", "Midpoint Mixup")  # the paper's claim is about these two
for spurious, names in ((True, tuple(METHODS)), (False, compared)):
    views, labels, tests = mixture_runs(spurious)
    for name in names:
        make = lambda: MLP((128, 256, 128, standin_classes))
        standin[name, spurious] = train_on_views(
            make,
            views,
            labels,
            tests,
            labels,
            METHODS[name],
            standin_epochs,
            batch=100,
            step_size=standin_step_size,
        )

# %% tags=["hide-input"]
fig, axes = plt.subplots(1, 2, figsize=(7.5, 3.1), sharey=True)
for ax, spurious, title in zip(
    axes, (True, False), ("with the spurious view", "control: view replaced by zeros")
):
    names = [name for name in METHODS if (name, spurious) in standin]
    groups = {name.split()[0]: standin[name, spurious] for name in names}
    figures.runs(ax, groups, [figures.COLORS[name] for name in names])
    ax.set(title=title, xlim=(-0.5, 2.5), ylim=(0, None))
axes[0].set_ylabel("test error, %")
figures.show(
    fig,
    title="Much of Mixup's lead remains when there is no spurious view",
    alt="Test errors of ERM, Midpoint and Uniform Mixup, runs and means with 95 percent intervals, in two panels: with the spurious view and with "
    "zeros instead (there without Uniform). In both, ERM's error is near a third and Mixup's is lower by 5 to 12 points.",
)
for name, spurious in standin:
    if name != "ERM":
        gain = stats.mean_interval(standin["ERM", spurious] - standin[name, spurious])
        where = "with the view" if spurious else "without"
        print(f"ERM minus {name}, {where}: {gain[0]:.1f} ± {gain[1]:.1f} points")

# %% tags=["remove-cell"]
gain, control = (
    standin["ERM", spurious] - standin["Midpoint Mixup", spurious]
    for spurious in (True, False)
)
uniform_gain = standin["ERM", True] - standin["Uniform Mixup", True]
ledger.mean("midpoint-beats-erm-on-two-views", gain)
ledger.mean("uniform-beats-erm-on-two-views", uniform_gain)
ledger.mean("advantage-needs-the-view", control)

# %% [markdown]
# With the view, Midpoint Mixup is about eleven points ahead of ERM and Uniform Mixup eight. Without it Midpoint Mixup is still seven ahead: most of its lead has nothing to do with the view.
#
# (01-held-up)=
# ## What held up
#
# The rules were set on pilot runs with other seeds. One was loosened afterwards: `midpoint-closes-gap-faster` first asked for a ratio below 0.5 in every sample and now asks it of their mean. (The cells
# that record the claims are left out of the page; they are in the notebook.)

# %%
# NBVAL_CHECK_OUTPUT
ledger.show()

# %% [markdown]
# **Holds, and more simply than printed.** The linear theory is right in substance: the closed forms match to machine precision, the gap identity holds for every sample and not only in expectation, and under its two extra hypotheses the midpoint gradient lifts a lagging feature at
# a rate $\Theta(1/k)$, where the paper claims $\Theta(1/k^2)$. Both theorems are visible at $k=8$: ERM keeps one feature for about nine classes in ten, and the exceptions are the classes whose two features would escape within a short time of each other; every class that Midpoint
# Mixup has fitted has both. In the theorem's own dimension $d=k^{20}$ the exceptions are gone: one feature for every class under ERM, both under Midpoint Mixup.
#
# **Fails as printed.** *Proposition 3.4* needs two hypotheses: a class that is far ahead of the others is pushed down along both features ({prf:ref}`cor-01-lagging`). *The reading of Table 1* lacks a control, and
# in the one setting where we can afford it the control matters: Midpoint Mixup is well ahead of ERM when there is no second view at all, so a lower test error on two-view images does not by itself show that both views were learned. (How much of the
# lead remains depends on the training: from a half or two thirds to all of it as Adam's step falls from 0.008 to 0.003; try `-p standin_step_size=0.003`.) {prf:ref}`thm-01-midpoint` is a statement about
# features, and the test that deletes features is the right one. The paper's slips are listed on the [errata page](../book/errata.md).
#
# **Only scaled.** $k=8$ and $N=32$ are not asymptotic, and $d=1/\sigma^2\approx8300$ in all experiments but the two on the dimension. At $d=k^{20}$ the midpoint's learned filters settle on a clock of their own, which is the limit of small weights and not the flow itself. The bounds on off-diagonal correlations are quoted, not checked. Midpoint Mixup is slow: classes with unlucky initial weights outlast the step
# budget. The patch networks are trained with steps that adapt to the flow, where the paper takes one small constant.
#
# **Only a stand-in.** The digits do not show the paper's ordering. The prototype mixture shows both Mixups ahead of ERM; between the two of them it does not show the paper's order, and we claim nothing about it.
#
# **Undecided.** Five runs of Midpoint Mixup do not tell whether its two features are equal to nine tenths, and the few runs on images and on the prototype mixture do not tell whether Uniform Mixup is behind ERM on the digits and ahead by five points on the mixture.
#
# **Open.** Whether *every* mixing law learns both features in the patch world, as the authors expect and our small runs suggest, has no proof. Nor do we know what Table 1 would look like with the control.

# %% [markdown]
# (01-not-run)=
# ## Not run here
#
# | What the paper reports | Why not by default | What runs it |
# |---|---|---|
# | Table 1 and Figure 2: ResNet-18, 100 epochs, five runs on CIFAR-10 | hours on a CPU; images not bundled | `mvnb run 01 --preset paper` |
# | the same on Fashion-MNIST and CIFAR-100 | the same | `mvnb run 01 --preset paper -p dataset=cifar100` |
# | test error after every epoch (the curves of Figure 2) | the final error carries the claim | not offered |
# | search over optimiser and learning rate | no number is reported | not offered |
# | synthetic or added spurious features | reported in words only (training error vanishes at once) | not offered |
# | Midpoint Mixup until every class is fitted | up to ten minutes | `mvnb run 01 -p midpoint_steps=20000` |

# %% [markdown]
# (01-try)=
# ## Try it
#
# ```{exercise}
# :label: ex-01-zero
#
# By hand: what are $J$, $J_{MM}$ and their gradients at $W=0$, for the linear model and for the patch network? What follows for the initialisation of the network?
# ```
#
# ```{solution} ex-01-zero
# :class: dropdown
#
# All softmax probabilities are $1/k$, so both losses are $\log k$. The linear model has a gradient: for $J$ it is $-\frac1N\sum_i(\mathbb 1[y_i=y]-\frac1k)x_i$, and for $J_{MM}$ with balanced classes half of that. The network has none, since $s'(0)=0$: the origin is a stationary point, and without random
# initial weights nothing would ever start.
# ```
#
# ```{exercise}
# :label: ex-01-entropy
#
# By hand: for $\lambda\sim\mathrm{Beta}(a,a)$ show that $\mathbb E[H(\lambda)]=\psi(2a+1)-\psi(a+1)$ with the digamma function $\psi$, and that it tends to $\log2$ as $a\to\infty$.
# ```
#
# ```{solution} ex-01-entropy
# :class: dropdown
#
# $\mathbb E[H]=-2\,\mathbb E[\lambda\log\lambda]$. Since $\mathbb E[\lambda^s]=B(a+s,a)/B(a,a)$, differentiating in $s$ at $s=1$ gives $\mathbb E[\lambda\log\lambda]=\mathbb E[\lambda]\,(\psi(a+1)-\psi(2a+1))=\frac12(\psi(a+1)-\psi(2a+1))$. For large arguments
# $\psi(x)\approx\log x$, so the difference tends to $\log\frac{2a+1}{a+1}\to\log2$. The function is `mvnb.papers.midpoint_mixup.theory.expected_entropy`.
# ```
#
# ```{exercise}
# :label: ex-01-alpha
#
# Re-run the chapter with a gentler activation. What do you expect for ERM, and for the winner prediction?
# ```
#
# ```{solution} ex-01-alpha
# :class: dropdown
#
# `mvnb run 01 -p act_power=4`. By {prf:ref}`lem-01-race` the loser grows by $(1-T_1/T_2)^{-1/2}$ and $T\propto\Lambda^{-2}$: escape times lie close together and the loser comes along. ERM learns both features for many classes, the claim
# `erm-one-feature` fails, and the winner is named less reliably.
# ```
#
# ```{exercise}
# :label: ex-01-law
#
# Midpoint Mixup is slow because only midpoints within a class, with the patches in the same place, show a feature at full strength. What should happen to its escape times, relative to ERM's, when the number of classes doubles? Check it with
# `mvnb run 01 -p n_classes=16 -p n_points=64`.
# ```
#
# ```{solution} ex-01-law
# :class: dropdown
#
# A filter of class $y$ meets its feature at full strength on a fraction of the order $1/k$ of the pairs that ERM would show it, and at half strength, damped by $2^{-\alpha}$, on the rest. While $1/k\gg2^{-\alpha}$ the delay relative to ERM is proportional to $k$, so it doubles, and
# fewer classes are fitted within the same number of steps.
# ```

# %% [markdown]
# (01-further)=
# ## Further reading
#
# - Multi-view data, the patch network and the tensor-power race are from Allen-Zhu and Li {cite}`allenzhu2020towards`, who use them to explain ensembles and distillation.
# - Mixup {cite}`zhang2018mixup` and its relatives Manifold Mixup {cite}`verma2019manifold` and CutMix {cite}`yun2019cutmix`; its effect on calibration {cite}`thulasidasan2019mixup`; Mixup as regularisation {cite}`carratino2022mixup`; when minimising the
#   Mixup loss fails to minimise the plain one {cite}`chidambaram2022data`.
# - The image experiment uses ResNet-18 {cite}`he2016deep`, Adam {cite}`kingma2015adam`, Fashion-MNIST {cite}`xiao2017fashion` and CIFAR {cite}`krizhevsky2009learning`.
# - The chapters on [fine-grained labels](02_fine_grained_labels.ipynb) and on [mask reconstruction](03_mask_reconstruction.ipynb) ask what labels and pretext tasks do to the same lottery.
