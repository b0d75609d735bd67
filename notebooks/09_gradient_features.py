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
# # One gradient step proposes the features
#
# > *Provable Guarantees for Neural Networks via Gradient Feature Learning*, Zhenmei Shi, Junyi Wei and Yingyu Liang ([Shi et al., 2023](../book/references.bib#shi2023provable)); in full as chapter 3 and
# > appendix B of Shi's thesis ([Shi, 2024](../book/references.bib#shi2024thesis)), which we follow.
#
# Let a two-layer ReLU network start with output zero, and let its first gradient step have a weight decay of one over the step. On any data, this step makes a list of proposals: each neuron becomes a multiple of a vector of its own, $\mathbb E[y\,\mathbf x\,\mathbb 1\{\mathbf w^\top\mathbf x>b\}]$, the mean of the signed data on the half-space that the neuron happened to draw. If a small network solves the task with weights in directions that the proposals hit often enough, then a sufficiently wide one trained by gradient descent on the hinge loss does nearly as well; that is one theorem for all labelled data with finite $\mathbb E\lVert\mathbf x\rVert$. What is left for each distribution is to compute the vectors, and for clusters, exclusive-or and uniform parities they have closed forms.
#
# <a id="fig-09-opening"></a>

# %% tags=["remove-input"]
from mvnb import figures

figures.opening()

# %% [markdown]
# Left: angles of a network's neurons in the plane of four exclusive-or clusters, before and after one exact gradient step; $\pm D_1$ and $\pm D_3$ are the directions of the clusters. Right: test error against dimension at the same signal-to-noise ratio, with the number of samples proportional to the dimension; dashed, the best possible error.
#
# Both halves are computed [further down](#09-experiments). The paper has no experiments, so every run on this page is our illustration of a lemma or a theorem.

# %% tags=["parameters", "hide-input"]
seed = 0  # first seed: replica r is the run with seed + r (integer, 0 or more)
replicas = 4  # independent runs of most experiments (2 or more)
device = "auto"  # "auto", "cpu" or "cuda"; closed forms stay on the CPU
gamma = 0.05  # half-width of the cones: cosine above 1 - gamma (between 0 and 1/2)
cluster_dim = 64  # dimension of the orthogonal clusters (4 or more)
cluster_norm = 10.0  # length of their means, in standard deviations (above 0)
widths = [400, 1600, 6400, 25600]  # neurons m; nice ones are counted (100 or more)
draws = 40000  # neurons from which probabilities are estimated (100 or more)
check_points = 100000  # points that check closed forms and means (1000 or more)
xor_dim = 100  # dimension of the exclusive-or that is trained end to end (2 or more)
xor_steps = 60  # steps after the first (20 or more)
xor_batch = 256  # fresh points a step (1 or more)
snr = 3.0  # |mu| / sigma where networks meet kernels (above 0)
compare_dims = [16, 32, 64]  # dimensions there, two or more, rising (2 or more)
compare_steps = 300  # steps after the first, batches of 256 (1 or more)
sure_dims = [50, 100, 400, 1000, 4000]  # dimensions of sure neurons, rising (3 or more)
parity_points = 4000  # points from which a parity is learned (20 or more)
parity_neurons = 64  # m for parities with one block; twice that with three (8 or more)
uniform_dim = 15  # bits of the uniform parity, odd (9 to 31)
uniform_sizes = [10000, 100000, 400000]  # samples of its first step (1 or more)
index_dims = [16, 32, 64]  # dimensions of the multi-index targets (3 or more)
index_neurons = 300  # neurons there (1 or more)
ticket_runs = 16  # runs of the lottery ticket (2 or more)
ticket_steps = 150  # steps of a ticket (25 or more)
bias_neurons = 400  # m of the three planes (50 or more)
bias_steps = 400  # steps there (40 or more)
n_test = 2000  # fresh points that judge a run (50 or more)

# %% tags=["hide-input"]
import functools
import itertools
import math

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.svm import LinearSVC

from mvnb import claims, figures, probes, stats, training
from mvnb.data import GaussianMixture
from mvnb.models import TwoLayer, TwoLayerObjective, two_layer_outputs
from mvnb.papers.gradient_features import theory
from mvnb.papers.gradient_features.data import BlockParity, LinearMargin, MultiIndex

# %% tags=["hide-input", "check"]
figures.use_style()
ledger = claims.Ledger("gradient_features")
device, seed = training.pick_device(device), training.fold_seed(seed)
print(f"device: {device.type}")
# What may be wrong with the parameters shows here, before anything is trained.
for name, values, least in (
    ("widths", widths, 2),
    ("compare_dims", compare_dims, 2),
    ("sure_dims", sure_dims, 2),
    ("uniform_sizes", uniform_sizes, 1),
    ("index_dims", index_dims, 1),
):
    if len(values) < least or values != sorted(set(values)):
        raise ValueError(f"{name} must ascend, {least} or more, got {values}")
if uniform_dim % 2 == 0:
    raise ValueError(f"uniform_dim must be odd, got {uniform_dim}")
NET, KERNEL, RANDOM, LINE = (
    figures.COLORS[c] for c in ("ERM", "Tangent kernel", "Random features", "theory")
)
ORANGE, GREEN, PINK = (figures.HUES[c] for c in ("orange", "green", "pink"))


stream = functools.partial(training.stream, seed)  # a generator for each purpose


# %% [markdown]
# <a id="09-question"></a>
# ## The question: what does a neuron see before it knows anything?
#
# A network that starts at random has features that have nothing to do with the data. Kernel methods keep such features and change their weights only. What a network does beyond that is decided by the gradient of the first layer, and at the beginning, when the output is still zero, that gradient is easy to read: for every neuron it is a mean over the points on which the neuron is active, with the sign of their labels. [Chapter 8](08_feature_emergence.ipynb) used that for one family of data; here the data may be any.
#
# The smallest case in which this is worth anything is exclusive-or: four clusters at $\pm\boldsymbol\mu_1$ (label $+1$) and $\pm\boldsymbol\mu_3$ (label $-1$), at right angles. The mean of $y\mathbf x$ over all data is zero, so that no linear rule helps. A neuron that cuts off a half-plane with a threshold sees something else.
#
# **Predict before you look.** A neuron points to somewhere between two clusters. Where does its gradient point?

# %% tags=["hide-input"]
tiny = GaussianMixture.xor(2, 3.0)
angles = torch.linspace(0, 2 * math.pi, 49, dtype=torch.float64)[:-1]
ring = torch.stack([angles.cos(), angles.sin()], 1)


cut = 2.5  # the threshold, in standard deviations
field, _ = theory.mixture_gradient(ring, torch.full((48,), cut).double(), tiny)
one = ring[4]
sample = tiny.sample(300, stream(777))
on = (sample.x.double() @ one) > cut

# %% tags=["hide-input"]
fig, axes = plt.subplots(1, 2, figsize=(7.5, 3.6))
for label, marker, color in ((1, "o", GREEN), (-1, "s", PINK)):
    for active, alpha in ((True, 0.9), (False, 0.2)):
        own = sample.x[(sample.y == label) & (on == active)].T
        axes[0].scatter(*own, s=14, marker=marker, color=color, alpha=alpha, lw=0)
g = field[4] / field[4].norm() * 3
axes[0].annotate("", 2.5 * one, (0, 0), arrowprops={"color": "#777777", "width": 1})
axes[0].annotate("", g, (0, 0), arrowprops={"color": NET, "width": 2})
axes[0].text(*(2.6 * one), "$w$", color="#555555")
axes[0].text(g[0] + 0.2, g[1] - 0.9, "$G(w,b)$", color=NET)
axes[1].quiver(*ring.T, *field.T, color=NET, width=0.008, scale=3.5)
titles = ("one neuron", "neurons in all directions")
for ax, title, reach in zip(axes, titles, (5.5, 1.8)):
    ax.set(title=title, xticks=[], yticks=[], aspect="equal")
    ax.set(xlim=(-reach, reach), ylim=(-reach, reach))
    ax.grid(False)
figures.show(
    fig,
    title="Behind a far threshold the gradient turns towards a cluster",
    alt="Left: four clusters of two labels; a grey arrow, the neuron, points between "
    "two of them, and a blue arrow, its gradient, almost at the nearer one. Right: "
    "blue arrows around a circle, long ones near the axes; those on the sides point "
    "outwards, those above and below point inwards.",
)

# %% [markdown]
# The neuron (grey) is active on the strongly drawn points only: half of the cluster that is nearer to it, and little of the other. The means of both, with the signs of their labels, add up to the blue arrow, which is about twice as close to an axis as the neuron. The threshold does it: the farther out, the larger the ratio of the two parts (and the smaller both). On the right are the gradients of neurons in all directions: towards $\pm\boldsymbol\mu_1$ or away from $\pm\boldsymbol\mu_3$, depending on which cluster is nearer. *A random half-space is a bad feature, but the signed mean of the data on it is a good one, often enough.*
#
# <a id="09-world"></a>
# ## The worlds
#
# The theory is for any distribution. These are the ones that the thesis works out; $y\in\{\pm1\}$ except in the last.
#
# | Name | Inputs | Label | What a good network needs |
# |---|---|---|---|
# | linear | $y(\beta+U)\,\mathbf w^*$ plus normal noise at right angles, $U$ uniform on $[0,1]$ | $y$ | $\pm\mathbf w^*$ |
# | mixture | clusters $\mathcal N(\boldsymbol\mu_j,\sigma_j^2I)$ with masses $p_j$ | of the cluster | $D_j=\boldsymbol\mu_j/\lVert\boldsymbol\mu_j\rVert$ |
# | exclusive-or | $\pm\boldsymbol\mu_1,\pm\boldsymbol\mu_3$ at right angles, equal masses | $+1$ on the first pair | $\pm D_1,\pm D_3$ |
# | structured parity | bits in $\{-1,0,1\}$; of $r$ blocks of $k$ relevant bits ($r$ and $k$ odd) either one is all $+1$ or all $-1$ and the others 0 (probability $p_{\mathbf A}$ each), or all are uniform; background bits $\pm1$ with probability $p_o$ each | sign of the sum of the blocks' products | $D_j=\sum_{l\in\mathbf A_j}\mathbf e_l/\sqrt k$ |
# | uniform parity | $d$ uniform bits | product of $k$ of them | $D=\sum_{l\in\mathbf A}\mathbf e_l/\sqrt k$, and signed versions |
# | multi-index | standard normal | a polynomial of few projections | the span of these |
#
# The thesis allows any orthonormal dictionary in the place of the bits' axes. Networks start from an isotropic draw, so a rotation of the data changes nothing, and the package samples in the simplest coordinates ({py:obj}`~mvnb.data.GaussianMixture`, {py:obj}`~mvnb.papers.gradient_features.data.BlockParity` and others).

# %% tags=["hide-input"]
fig, axes = plt.subplots(1, 2, figsize=(7.5, 3.2), width_ratios=(1, 1.6))
planes = GaussianMixture.xor(8, 6.0, (0.6, 0.28, 0.12)).sample(500, stream(777))
for label, marker, color in ((1, "o", GREEN), (-1, "s", PINK)):
    own = planes.x[planes.y == label]
    axes[0].scatter(own[:, 0], own[:, 2], s=10, marker=marker, color=color, lw=0)
axes[0].set(xlabel="axis of plane 1", ylabel="axis of plane 2", title="exclusive-or")
axes[0].set_aspect("equal")
bits = BlockParity(24, 3, 3, 0.1, 0.1)
few = bits.sample(400, stream(777))
few = type(few)(*(v[few.y.argsort(stable=True)][::25] for v in few))
axes[1].imshow(few.x, cmap="PuOr", vmin=-1.3, vmax=1.3, aspect="auto")
axes[1].set_yticks(range(16), [f"{int(v):+d}" for v in few.y], fontsize=7)
for edge in (2.5, 5.5, 8.5):
    axes[1].axvline(edge, color=LINE, lw=1)
axes[1].set(xlabel="bit; three blocks of three, then background", ylabel="label")
axes[1].set_title("structured parity")
axes[1].grid(False)
figures.show(
    fig,
    title="Clusters in planes, and parities of blocks",
    alt="Left: clusters of two labels in a projection of three exclusive-or problems. "
    "Right: sixteen points of bits as rows, in two colours and white for zero; some "
    "rows have a single uniform block of one colour, others have all blocks mixed.",
)

# %% [markdown]
# <a id="09-model"></a>
# ## The model, the objective and the start
#
# The network has two layers of plain ReLUs, $\sigma(z)=\max(z,0)$, and thresholds that are never trained:
#
# $$
# g_{(\mathbf a,\mathbf W,\mathbf b)}(\mathbf x)=\sum_ia_i\,\sigma(\langle\mathbf w_i,\mathbf x\rangle-b_i),\qquad
# \mathcal L(g)=\mathbb E\,\ell\bigl(y\,g(\mathbf x)\bigr).
# $$ (eq-09-model)
#
# We use the hinge loss $\ell(z)=\max(0,1-z)$, which is convex, decreasing and 1-Lipschitz with $\ell(0)=1$ and $\ell'(0)=-1$, all that the theory asks for (Assumption 3.1). Note the sign of the bias: {py:class}`~mvnb.models.TwoLayer` adds its `b`, so we store $-b_i$.
#
# **The start** has $4m$ neurons in four blocks, each a mirror of the first:
#
# $$
# \begin{gathered}
# \bigl(a,\mathbf w,b\bigr),\quad\bigl(-a,-\mathbf w,-b\bigr),\quad\bigl(-a,\mathbf w,b\bigr),\quad\bigl(a,-\mathbf w,-b\bigr),\\
# a\sim\mathcal N(0,\sigma_a^2),\quad\mathbf w\sim\mathcal N(0,\sigma_w^2I),\quad b=\tilde b>0 .
# \end{gathered}
# $$ (eq-09-start)
#
# Block three undoes block one and block four undoes block two, so the output is zero everywhere. **The first step** goes with weight decay $\lambda^{(1)}=1/\eta^{(1)}$, which erases what was there: $\mathbf w^{(1)}=\mathbf w^{(0)}-\eta(\nabla+\lambda\mathbf w^{(0)})=-\eta\nabla$. Afterwards there is no decay, and both layers (in the *warm-up*, the second alone) are trained with a small constant step. A large first step from small weights does the same in practice.


# %%
def symmetric_start(m, dim, generators, threshold, sigma_w):
    """Stacked parameters of (eq-09-start), 4m neurons each."""
    draws = [[torch.randn(s, generator=g) for s in ((m, dim), m)] for g in generators]
    # (replica, m, dim) and (replica, m)
    w, a = (torch.stack(part) for part in zip(*draws))
    w, b = sigma_w * w, torch.full_like(a, threshold)
    return {
        "w": torch.cat([w, -w, w, -w], 1),
        "b": -torch.cat([b, -b, b, -b], 1),
        "a": torch.cat([a, -a, -a, a], 1),
    }


def first_step(start, g, response, eta):
    """Weights after a step with weight decay 1 / eta, from the simplified gradients."""
    w = eta * start["a"][..., None] * g.to(start["w"])
    return {"w": w, "b": start["b"], "a": eta * response.to(start["a"])}


def exact_gradients(start, mixture):
    """Simplified gradients and responses at a start, of all points of a mixture."""
    return theory.mixture_gradient(start["w"].double(), -start["b"].double(), mixture)


# %%
def learn(params, batches, steps, step, test, frozen=(), log_at=None, **extra):
    """Descend the hinge loss; logs the error on test points (an output of 0 counts)."""
    x, y = (v.expand(len(params["a"]), *v.shape).to(device) for v in test)
    # 0 up to rounding: a symmetric start sums to it
    error = lambda p: (y * two_layer_outputs(p, x) < 1e-5).double().mean(1)
    rates = dict.fromkeys(("b", *frozen), 0.0)
    return training.fit(
        TwoLayerObjective("hinge"),
        training.to_device(params, device),
        batches,
        steps=steps,
        optimizer=training.SGD(step, rates=rates),
        probes={"error": error, **extra},
        log_at=log_at,
    )


# %% [markdown]
# <a id="09-derivation"></a>
# ## The derivation, I: what the first step writes
#
# ::::{prf:definition} Simplified gradient and gradient features (Definitions 3.5 and 3.7)
# :label: def-09-feature
#
# $$
# G(\mathbf w,b)=\mathbb E\bigl[y\,\mathbf x\,\mathbb 1\{\langle\mathbf w,\mathbf x\rangle>b\}\bigr].
# $$ (eq-09-g)
#
# A unit vector $D$ with a sign $s$ is a *gradient feature*, $(D,s)\in S_{p,\gamma,B_G}$, if for a random neuron of the start with $\mathrm{sign}(b)=s$ the vector $G(\mathbf w,b)$ has norm at least $B_G$ and $\lvert\langle G,D\rangle\rvert>(1-\gamma)\lVert G\rVert$, with probability at least $p$.
# ::::
#
# ::::{prf:lemma} The first step (Lemmas B.70 to B.72)
# :label: lem-09-first
#
# From {eq}`eq-09-start` and with $\lambda^{(1)}=1/\eta$, for the population or for any sample whatever,
#
# $$
# \begin{gathered}
# \mathbf w_i^{(1)}=-\eta\,\ell'(0)\,a_i^{(0)}\,G(\mathbf w_i^{(0)},b_i),\\
# a_i^{(1)}=-\eta\,\ell'(0)\,\mathbb E\bigl[y\,\sigma(\langle\mathbf w_i^{(0)},\mathbf x\rangle-b_i)\bigr],
# \end{gathered}
# $$ (eq-09-first)
#
# and $\mathbf w^{(1)}_{i+2m}=-\mathbf w^{(1)}_i$, $a^{(1)}_{i+2m}=a^{(1)}_i$ for $i\le2m$. Moreover
#
# $$
# \begin{gathered}
# G(-\mathbf w,-b)=\mathbb E[y\mathbf x]-G(\mathbf w,b),\\
# G(c\mathbf w,cb)=G(\mathbf w,b)\ (c>0),\qquad \lVert G\rVert\le\mathbb E\lVert\mathbf x\rVert ,
# \end{gathered}
# $$ (eq-09-identity)
#
# the first if $\langle\mathbf w,\mathbf x\rangle=b$ has probability zero.
# ::::
#
# :::{prf:proof}
# $\partial\mathcal L/\partial\mathbf w_i=a_i\,\mathbb E[\ell'(yg)\,y\,\mathbb 1\{\langle\mathbf w_i,\mathbf x\rangle>b_i\}\,\mathbf x]$, and $\ell'(yg)=\ell'(0)$ at every point as long as $g=0$. Blocks one and three share $(\mathbf w,b)$ and have opposite $a$. For the identity, $\langle-\mathbf w,\mathbf x\rangle>-b$ is the complement of $\langle\mathbf w,\mathbf x\rangle\ge b$.
# :::
#
# Everything after this is about one function of $(\mathbf w,b)$. By {eq}`eq-09-identity` a neuron with a negative threshold brings no new direction where $\mathbb E[y\mathbf x]=0$, and where it is not zero the neuron is biased towards it. That will matter for parities.
#
# Two of the closed forms. For a mixture, with $z_l=(\langle\mathbf w,\boldsymbol\mu_l\rangle-b)/(\sigma_l\lVert\mathbf w\rVert)$, a Gaussian cut by a half-space has
#
# $$
# G(\mathbf w,b)=\sum_lp_l\,y_l\Bigl[\boldsymbol\mu_l\,\Phi(z_l)+\sigma_l\,\varphi(z_l)\frac{\mathbf w}{\lVert\mathbf w\rVert}\Bigr],
# $$ (eq-09-mixture)
#
# since the component along $\mathbf w$ is a truncated normal and the others do not notice the cut. And for a quadratic target $y=\frac12(\mathbf x^\top H\mathbf x-\mathrm{tr}H)$ of normal inputs at $b=0$, with $u=\mathbf w/\lVert\mathbf w\rVert$: split $\mathbf x=\xi u+\mathbf x_\perp$. Along $u$ there is $\frac12u^\top Hu\,\mathbb E[(\xi^2-1)\,\xi\,\mathbb 1\{\xi>0\}]=\frac12u^\top Hu\,\varphi(0)$, at right angles $\mathbb E[\xi\,\mathbb 1\{\xi>0\}]\,(Hu)_\perp=\varphi(0)(Hu)_\perp$, and so
#
# $$
# G(\mathbf w,0)=\tfrac1{\sqrt{2\pi}}\bigl[Hu-\tfrac12(u^\top Hu)\,u\bigr].
# $$ (eq-09-quadratic)
#
# One step maps a random neuron to its image under $H$, which lies in the span that matters, up to a part of order $1/\sqrt d$. The parities have their turn below.

# %%
# NBVAL_CHECK_OUTPUT
mixture = GaussianMixture.orthogonal(6, 2.0, [1, -1, -1, 1])
start = symmetric_start(16, 6, training.generators(seed, 1), 1.0, 0.5)
start = {k: v.double() for k, v in start.items()}
x, y = mixture.sample(400, stream(777), torch.float64)
net = TwoLayer(*(start[k][0] for k in ("w", "b", "a")))
(1 - y * net(x)).clamp(min=0).mean().backward()
eta = 0.7  # any: the decay 1 / eta leaves minus eta times the gradient
w, b = start["w"][0], -start["b"][0]
sampled = theory.sample_gradient(start["w"], -start["b"], x, y)
stepped = first_step(start, *sampled, eta)
first_error = (stepped["w"][0] + eta * net.w.grad).abs().max().item()
first_error = max(first_error, (stepped["a"][0] + eta * net.a.grad).abs().max().item())
print("the first step is autograd's, to 1e-12:", first_error < 1e-12)
mirrored = (stepped["w"][0, :32] + stepped["w"][0, 32:]).abs().max().item()
print("blocks are mirrored to 1e-12:", mirrored < 1e-12)
g, response = theory.mixture_gradient(w, b, mixture)
mean = (mixture.masses * mixture.labels) @ mixture.means
apart = (g[:16] + g[16:32] - mean).abs().max().item()
print("G(-w, -b) + G(w, b) = E[yx]:", apart < 1e-12)
leaf = w.clone().requires_grad_()
theory.mixture_gradient(leaf, b, mixture)[1].sum().backward()
apart = (leaf.grad - g).abs().max().item()
print("G is the gradient of E[y s(w.x - b)]:", apart < 1e-12)


# %% tags=["hide-input"]
def cube_of(d):
    bits = torch.arange(2**d)[:, None] >> torch.arange(d) & 1
    return 2.0 * bits.float() - 1


h = torch.diag(torch.tensor([1.0, -1.0, 0, 0, 0, 0]).double())
cases = (
    (mixture, b[:4], theory.mixture_gradient(w[:4], b[:4], mixture)[0]),
    (MultiIndex(6), torch.zeros(4).double(), theory.quadratic_gradient(w[:4], h)),
    (LinearMargin(6), b[:4], theory.linear_gradient(w[:4], b[:4], 0.5)),
)
scores, draw = np.zeros(replicas), stream(777)  # largest deviations, standard errors
for r in range(replicas):
    for world, thresholds, exact in cases:
        x, y = world.sample(check_points, draw, torch.float64)
        on = (x @ w[:4].T > thresholds).double()
        seen = (on * y[:, None]).T @ x / len(x)
        spread = (on.T @ (y[:, None] * x).square() / len(x) - seen.square()).sqrt()
        least = len(x) ** -0.5  # where a neuron is off at all points: one of size 1
        score = (seen - exact).abs() / (spread.clamp(min=least) / len(x) ** 0.5)
        scores[r] = max(scores[r], score.max().item())
cube = cube_of(11).double()
ws = cube[torch.randperm(2048, generator=stream(777))[:50]]
label = cube[:, :4].prod(1)
counted, _ = theory.sample_gradient(ws, torch.zeros(50).double(), cube, label)
enumerated = (theory.uniform_parity_gradient(ws, 4) - counted).abs().max().item()

# %% tags=["remove-cell"]
ledger.exact("first-step-is-the-gradient-vector", max(first_error, mirrored))
ledger.mean("closed-forms", score=scores, enumerated=[enumerated] * replicas)

# %% [markdown]
# The folded cell compares $G$ of mixtures, quadratic targets and margins with sampling, and that of uniform parities (below) with all $2^{11}$ points of a cube.
#
# ## The derivation, II: a good network is there after one step
#
# Let a small network of gradient features be given, the *ground truth* of the theory,
#
# $$
# \begin{gathered}
# g^*(\mathbf x)=\sum_{j=1}^ra_j^*\,\sigma(\langle\mathbf w_j^*,\mathbf x\rangle-b_j^*),\qquad(\mathbf w_j^*,\mathrm{sign}\,b_j^*)\in S_{p,\gamma,B_G},\\
# \lVert\mathbf w^*_j\rVert=1,\quad\lvert a_j^*\rvert\le B_{a1},\quad\lVert\mathbf a^*\rVert\le B_{a2},\quad\lvert b_j^*\rvert\le B_b ,
# \end{gathered}
# $$ (eq-09-star)
#
# the one with the least loss, $\mathrm{OPT}$. Which neurons of the large network can stand in for neuron $j$? Those whose step ended in the right cone *and* at the right length.
#
# ::::{prf:lemma} Feature emergence (Lemma 3.13)
# :label: lem-09-emergence
#
# Call neuron $i$ *nice* for $(D,s)$ if $\mathrm{sign}(b_i)=s$, $\langle\mathbf w_i^{(1)},D\rangle>(1-\gamma)\lVert\mathbf w_i^{(1)}\rVert$ and $\lVert\mathbf w_i^{(1)}\rVert\ge\eta\,\lvert\ell'(0)a_i^{(0)}\rvert B_G$. With probability at least $1-re^{-mp/16}$ each of $r$ given gradient features has at least $\frac{mp}4$ nice neurons.
# ::::
#
# :::{prf:proof}
# The sign of $a_i^{(0)}$ is independent of everything else and decides between the cones around $D$ and $-D$. So a neuron of the block in question is nice with probability at least $\frac p2$, independently of the others; $\Pr[\mathrm{Bin}(m,\frac p2)\le\frac12\cdot\frac{mp}2]\le e^{-mp/16}$ (Chernoff).
# :::
#
# ::::{prf:lemma} A good network (Lemma 3.14)
# :label: lem-09-good
#
# Let $\Lambda_j$ be the nice neurons of feature $j$ with $\bigl\lvert\eta\lvert\ell'(0)a_i^{(0)}\rvert\lVert G_i\rVert\,\beta_j/\tilde b-1\bigr\rvert\le\epsilon_a$, where $\beta_j=\max(\lvert b_j^*\rvert,B_\epsilon)$. If no $\Lambda_j$ is empty, then $\tilde a_i=a_j^*\beta_j/(\lvert\Lambda_j\rvert\,\tilde b)$ on $\Lambda_j$, and 0 elsewhere, gives
#
# $$
# \mathbb E\bigl\lvert g_{(\tilde{\mathbf a},\mathbf W^{(1)},\mathbf b)}-g^*\bigr\rvert\le rB_{a1}\bigl[B_{x1}\bigl(\epsilon_a+\sqrt{2\gamma}\bigr)+B_\epsilon\bigr],\qquad B_{x1}=\mathbb E\lVert\mathbf x\rVert ,
# $$ (eq-09-good)
#
# and a loss larger than $\mathrm{OPT}$ by at most that.
# ::::
#
# ::::{prf:proof}
# ReLUs are positively homogeneous: $\frac{\beta_j}{\tilde b}\sigma(\langle\mathbf w_i^{(1)},\mathbf x\rangle\mp\tilde b)=\sigma(\frac{\beta_j}{\tilde b}\langle\mathbf w_i^{(1)},\mathbf x\rangle\mp\beta_j)$. So one fixed threshold serves all kinks, at different lengths of $\mathbf w$; the random $a_i^{(0)}$ provide these lengths. For $i\in\Lambda_j$ the vector $\frac{\beta_j}{\tilde b}\mathbf w_i^{(1)}$ has length within $\epsilon_a$ of 1, and its direction is within $\sqrt{2\gamma}$ of $\mathbf w_j^*$, because unit vectors at cosine $c$ are at distance $\sqrt{2-2c}$. Hence $\lvert\frac{\beta_j}{\tilde b}\langle\mathbf w_i^{(1)},\mathbf x\rangle-\langle\mathbf w_j^*,\mathbf x\rangle\rvert\le(\epsilon_a+\sqrt{2\gamma})\lVert\mathbf x\rVert$, a threshold below $B_\epsilon$ costs $B_\epsilon$ more, and ReLU and loss are 1-Lipschitz.
# ::::
#
# How large must $m$ be, so that $\Lambda_j$ is large with a small $\epsilon_a$? The thesis draws $a^{(0)}$ very wide, $\sigma_a\propto1/B_\epsilon$, to be safe for thresholds $b^*_j$ near zero, chooses $\epsilon_a\propto1/(\sqrt{mp}\,B_\epsilon)$ and balances the two: the excess is
#
# $$
# \begin{gathered}
# rB_{a1}B_{x1}\Bigl(\frac2{(mp)^{1/4}}\sqrt{\frac{B_b}{B_G}}+\sqrt{2\gamma}\Bigr),\\
# \lVert\tilde{\mathbf a}\rVert_0=O(r\sqrt{mp}),\qquad\lVert\tilde{\mathbf a}\rVert_2=O\Bigl(\frac{B_{a2}B_b}{\tilde b\,(mp)^{1/4}}\Bigr),
# \end{gathered}
# $$ (eq-09-excess)
#
# so that $m\propto\epsilon^{-4}/p$. The fourth power is the price of thresholds that may vanish.
#
# ::::{prf:proposition} Half the exponent (ours)
# :label: prop-09-half
#
# Suppose that $\lvert b_j^*\rvert\in[B_b/K,B_b]$ and $\lVert G_i\rVert\le KB_G$ for the nice neurons. Then $\eta\sigma_a=\tilde b/(B_bB_G)$ and $\epsilon_a=(mp)^{-1/2}$ give $\lVert\tilde{\mathbf a}\rVert_0$ and $\lVert\tilde{\mathbf a}\rVert_2$ of the same orders, and the excess $rB_{a1}B_{x1}\bigl((mp)^{-1/2}+\sqrt{2\gamma}\bigr)$: $m\propto\epsilon^{-2}/p$ neurons are enough.
# ::::
#
# :::{prf:proof}
# When no threshold is near zero, one width of $a^{(0)}$ suits all features: the lengths of nice neurons spread over a fixed range around the right one, and a share of order $\epsilon_a$ of them falls within $\epsilon_a$ of it. A neuron's length, scaled as in {prf:ref}`lem-09-good`, is $\lvert\xi\rvert s_i$ with $\xi\sim\mathcal N(0,1)$ and $s_i=\eta\sigma_a\lVert G_i\rVert\lvert b_j^*\rvert/\tilde b\in[1/K,K]$. The density of $\lvert\xi\rvert$ is at least $2\varphi(2K)$ up to $2K$, so for $\epsilon_a\le1$ the length is within $\epsilon_a$ of 1 with probability at least $\frac{4\epsilon_a}K\varphi(2K)$, given that the neuron is nice. There are $\frac{mp}4$ nice ones, so $\lvert\Lambda_j\rvert=\Omega(\epsilon_amp)=\Omega(\sqrt{mp})$ with high probability. No $\beta_j$ needs $B_\epsilon$, so that the excess is {eq}`eq-09-good` without it, and the norms are those of $\tilde a_i=a_j^*\lvert b_j^*\rvert/(\lvert\Lambda_j\rvert\,\tilde b)$, with no more than of order $\sqrt{mp}$ neurons kept in each $\Lambda_j$.
# :::
#
# Existence alone would be content with one neuron in each $\Lambda_j$, so with $m\propto\epsilon^{-1}/p$; the larger sets keep $\lVert\tilde{\mathbf a}\rVert$ small, which descent needs.

# %% [markdown]
# ## The derivation, III: descent finds it
#
# ::::{prf:lemma} Online convex optimisation (Theorem B.7, in the form of a distance)
# :label: lem-09-online
#
# Let $f_1,\dots,f_T$ be convex and $\theta_{t+1}=\theta_t-\eta\nabla f_t(\theta_t)$. For every $\theta^*$
#
# $$
# \frac1T\sum_tf_t(\theta_t)\le\frac1T\sum_tf_t(\theta^*)+\frac{\lVert\theta_1-\theta^*\rVert^2}{2\eta T}+\frac\eta{2T}\sum_t\lVert\nabla f_t(\theta_t)\rVert^2 .
# $$ (eq-09-online)
# ::::
#
# :::{prf:proof}
# $\lVert\theta_{t+1}-\theta^*\rVert^2=\lVert\theta_t-\theta^*\rVert^2-2\eta\langle\nabla f_t(\theta_t),\theta_t-\theta^*\rangle+\eta^2\lVert\nabla f_t(\theta_t)\rVert^2$, and $\langle\nabla f_t(\theta_t),\theta_t-\theta^*\rangle\ge f_t(\theta_t)-f_t(\theta^*)$ by convexity. Sum over $t$.
# :::
#
# Apply it to $f_t(\mathbf a)=\mathcal L(g_{(\mathbf a,\mathbf W^{(t)},\mathbf b)})$ with $\theta^*=\tilde{\mathbf a}$. The loss is convex in $\mathbf a$; that $\mathbf W^{(t)}$ moves meanwhile only changes which convex function is next.
#
# ::::{prf:theorem} Gradient feature learning (Theorem 3.12, population form)
# :label: thm-09-main
#
# Let $(\mathbf w_j^*,\mathrm{sign}\,b_j^*)\in S_{p,\gamma,B_G}$ for a network {eq}`eq-09-star` of loss $\mathrm{OPT}$. After the first step, whose length is $\eta^{(1)}$ here and $\eta$ in the lemmas above, let both layers be trained with step $\eta$, no decay and $T\eta B_{x1}\le1$. With probability $1-O(re^{-\Theta(\sqrt{mp})})$
#
# $$
# \begin{gathered}
# \min_{t\le T}\Pr[\mathrm{sign}\,g^{(t)}\ne y]\le\min_{t\le T}\mathcal L(g^{(t)})\\
# \le\mathrm{OPT}+\Delta_{\mathrm{good}}+\Delta_{\mathrm{move}}+\Delta_{\mathrm{descent}},\\
# \Delta_{\mathrm{good}}=rB_{a1}B_{x1}\Bigl(\frac2{(mp)^{1/4}}\sqrt{\frac{B_b}{B_G}}+\sqrt{2\gamma}\Bigr),
# \end{gathered}
# $$ (eq-09-main)
#
# with $\Delta_{\mathrm{move}}=B_{x1}\lVert\tilde{\mathbf a}\rVert_2\sqrt{\lVert\tilde{\mathbf a}\rVert_0}\,\max_{i,t}\lVert\mathbf w_i^{(t)}-\mathbf w_i^{(1)}\rVert$ and $\Delta_{\mathrm{descent}}=\frac{\lVert\mathbf a^{(1)}-\tilde{\mathbf a}\rVert^2}{2\eta T}+2\eta m\max_{i,t}(B_{x1}\lVert\mathbf w_i^{(t)}\rVert+\tilde b)^2$. Both are at most $\epsilon$ for suitable $\tilde b$, $\sigma_a$, $\eta^{(1)}$, $\eta$ and $T$, if $mp$ is at least a polynomial in $1/\epsilon$ and the bounds.
# ::::
#
# ::::{prf:proof}
# The read-out $\tilde{\mathbf a}$ is a fixed opponent to compete with: it is good for the first layer after one step and remains so while that layer hardly moves, and descent on a convex loss does on average nearly as well as any fixed read-out.
#
# *Good network.* {prf:ref}`lem-09-emergence` and {prf:ref}`lem-09-good` give $\tilde{\mathbf a}$ for $\mathbf W^{(1)}$.
#
# *It stays good.* Changing $\mathbf w_i$ by $\delta_i$ changes the output by at most $\sum_i\lvert\tilde a_i\rvert\lVert\delta_i\rVert\lVert\mathbf x\rVert$, so that $f_t(\tilde{\mathbf a})\le f_1(\tilde{\mathbf a})+\Delta_{\mathrm{move}}$ (Cauchy-Schwarz on the support of $\tilde{\mathbf a}$).
#
# *Weights move little.* Since $\lvert\ell'\rvert\le1$, $\lVert\partial_{\mathbf w_i}\mathcal L\rVert\le B_{x1}\lvert a_i\rvert$ and $\lvert\partial_{a_i}\mathcal L\rvert\le B_{x1}\lVert\mathbf w_i\rVert+\tilde b$. So the pair $(\lvert a_i\rvert,\lVert\mathbf w_i-\mathbf w^{(1)}_i\rVert)$ is majorised by a linear recursion, and $\sum_{s\le t}\lvert a_i^{(s)}\rvert\le h(t)$ with $h(t+2)=2h(t+1)-(1-\eta^2B_{x1}^2)h(t)+\eta Z_i$ and $Z_i=B_{x1}\lVert\mathbf w_i^{(1)}\rVert+\tilde b$. Hence $\lVert\mathbf w_i^{(t)}-\mathbf w_i^{(1)}\rVert\le\eta B_{x1}h(t-1)$. The recursion is solved by powers of $1\pm\eta B_{x1}$, which are bounded for $T\eta B_{x1}\le1$ (Lemmas B.9 and B.77, {py:func}`~mvnb.papers.gradient_features.theory.drift_bound`).
#
# *Descent.* {eq}`eq-09-online` with $\theta_1=\mathbf a^{(1)}$; there are $4m$ partial derivatives. The minimum over $t$ is at most the mean, and $\Pr[\mathrm{sign}\,g\ne y]\le\mathcal L$, since $\ell\ge1$ where the sign is wrong. Steps alone do not make $\Delta_{\mathrm{descent}}$ small: as $T\eta B_{x1}\le1$, it is at least $\frac{B_{x1}}2\lVert\mathbf a^{(1)}-\tilde{\mathbf a}\rVert^2$. What makes it small is $\lVert\tilde{\mathbf a}\rVert$, which falls with $mp$ and with $\tilde b$.
# ::::
#
# **Warm-up (Theorem 3.4).** With the first layer frozen after one step, $\Delta_{\mathrm{move}}=0$, the problem is convex, and all that remains is standard: on one sample of $n$ points, descent reaches $\mathrm{OPT}_{\mathbf W^{(1)},\mathbf b,B_{a2}}$, the best loss of all read-outs with $\lVert\mathbf a\rVert\le B_{a2}$, up to $O(L(\lVert\mathbf a^{(1)}\rVert^2+B_{a2}^2)/T)$ for an $L$-smooth loss and up to the Rademacher complexity $\sqrt{B_{a2}^2(\lVert\mathbf W^{(1)}\rVert_F^2B_x^2+\lVert\mathbf b\rVert^2)/n}$. Hinge losses are not smooth, so for them the first term is that of {eq}`eq-09-online`. Where we are interested in features alone, we take this at its word and *solve* the convex problem (`read_out` below): then networks and kernels differ in nothing but their features.
#
# **Samples (Theorem B.17).** A sample replaces $G$ by a mean $\tilde G$ of $n$ vectors, $\mathbb E\lVert\tilde G-G\rVert^2\le B_{x2}/n$ with $B_{x2}=\mathbb E\lVert\mathbf x\rVert^2$. If $\lVert\tilde G-G\rVert\le\beta$ and $\lVert G\rVert\ge B_G$, the cosine falls by at most $2\beta/B_G$:
#
# $$
# \frac{\langle\tilde G,D\rangle}{\lVert\tilde G\rVert}\ge\frac{(1-\gamma)\lVert G\rVert-\beta}{\lVert G\rVert+\beta}\ge1-\gamma-\frac{2\beta}{B_G}.
# $$ (eq-09-noise)
#
# The thesis works with $\beta\propto\sqrt{B_{x2}}\,n^{-1/3}$, which makes exceptions as rare as $e^{-n^{1/3}}$; the typical deviation is of order $n^{-1/2}$. The rest of the proof is unchanged.

# %% tags=["hide-input"]
clusters = GaussianMixture.orthogonal(cluster_dim, cluster_norm, [1, 1, -1, -1])
n_clusters, features = len(clusters.labels), clusters.features
g_least = 0.5 * cluster_norm / n_clusters  # B_G; a whole cluster has |G| = |mu| / r
kink = cluster_norm / 4  # t: the ground truth rises from 2t on, by 1/t
sigma_w = 1 / (1.5 * cluster_norm)  # thresholds are 1.5 standard deviations out


def drawn_gradients(m, g):
    """Exact gradients of m neurons with threshold 1, their norms and signed cosines."""
    w = sigma_w * torch.randn(m, cluster_dim, generator=g).double()
    a = torch.randn(m, generator=g).double()
    vectors, _ = theory.mixture_gradient(w, torch.ones(m).double(), clusters)
    signed = a.sign()[:, None] * probes.cosines(vectors, features)
    return a, vectors, vectors.norm(dim=1), signed


_, _, length, cosine = drawn_gradients(draws, stream(777))
hit = (cosine.abs() > 1 - gamma) & (length >= g_least)[:, None]
p = hit.double().mean().item()  # the same for all clusters, by symmetry
x, y = clusters.sample(n_test, stream(777), torch.float64)
star = ((x @ features.T - 2 * kink).clamp(min=0) * clusters.labels / kink).sum(1)
opt = (1 - y * star).clamp(min=0).mean().item()
x_norm = x.norm(dim=1).mean().item()
print(f"p = {p:.4f}, loss of the ground truth {opt:.4f}")

# %% [markdown]
# ### The two lemmas on clusters
#
# Four clusters at right angles, two of each label. The ground truth has four neurons, $g^*=\sum_j\frac{y_j}t\,\sigma(\langle D_j,\mathbf x\rangle-2t)$ with $t=\lVert\boldsymbol\mu\rVert/4$, and every $G$ is exact by {eq}`eq-09-mixture`, so that only the draw of the neurons is random. *Predictions:* half of $mp$ neurons are nice for each feature; the error of the explicit network falls with $mp$, faster by {prf:ref}`prop-09-half`'s choice.


# %%
def good_network(a, vectors, length, nice, mp, wide):
    """Lemma 3.14's network, explicitly: E|g - g*|, loss, and sizes of the sets."""
    scale = (mp**0.25 if wide else 1.0) * a.abs() * length * n_clusters / cluster_norm
    near = (scale - 1).abs() <= mp ** (-0.25 if wide else -0.5)
    out, sizes = torch.zeros(len(x)).double(), []
    for j in range(n_clusters):
        chosen = nice[:, j] & near
        # (b* / b) w^(1), which is to be D_j
        w = (a.sign() * scale / length)[chosen, None] * vectors[chosen]
        value = (x @ w.T - 2 * kink).clamp(min=0).sum(1) / max(int(chosen.sum()), 1)
        out += clusters.labels[j] / kink * value
        sizes.append(int(chosen.sum()))
    loss = (1 - y * out).clamp(min=0).mean()
    return [(out - star).abs().mean(), loss, sum(sizes), *sizes]


def explicit_networks(m, g):
    """A draw of m neurons: nice ones of each feature, the thesis's network and ours."""
    a, vectors, length, cosine = drawn_gradients(m, g)
    nice = (cosine > 1 - gamma) & (length >= g_least)[:, None]
    draw = (a, vectors, length, nice, m * p)
    return nice.sum(0).tolist(), [good_network(*draw, wide) for wide in (True, False)]


# Distances of few draws overlap; those of eight times as many do not.
drawn = [
    [explicit_networks(m, g) for g in training.generators(seed, 8 * replicas)]
    for m in widths
]
mp = np.array(widths) * p
share = np.array([[nice for nice, _ in row] for row in drawn]) / mp[:, None, None]
networks = np.array([[both for _, both in row] for row in drawn], dtype=float)
good = {True: networks[:, :, 0], False: networks[:, :, 1]}  # (width, run, value)
empty = {wide: (values[..., 3:] == 0).any(-1) for wide, values in good.items()}

# %% tags=["hide-input"]
fig, axes = plt.subplots(1, 2, figsize=(7.5, 3.3))
axes[0].plot(mp, share.reshape(len(mp), -1), ".", color=NET, alpha=0.2)
axes[0].axhline(0.5, **figures.LINES["theory"])
axes[0].axhline(0.25, **figures.LINES["paper"])
axes[0].annotate("expected", (0.8 * mp[-1], 0.52), ha="right")
axes[0].annotate("Lemma 3.13", (mp[-1], 0.27), ha="right")
axes[0].set(xscale="log", ylim=(0, 1), xlabel="$mp$", title="nice neurons over $mp$")
for wide, color, name in ((True, NET, "thesis's lengths"), (False, ORANGE, "ours")):
    gap = np.ma.array(good[wide][..., 0], mask=empty[wide])
    axes[1].loglog(mp, gap.mean(1), "o-", color=color, label=name)
    axes[1].loglog(mp, gap, ".", color=color, alpha=0.2)
axes[1].loglog(mp, 1.1 * (mp / mp[0]) ** -0.25, color=LINE, ls="--", lw=1)
axes[1].annotate("slope $-1/4$", (mp[1], 0.85))
axes[1].set(xlabel="$mp$", title="$E|g-g^*|$ of the explicit network")
axes[1].legend(loc="lower left")
figures.show(
    fig,
    title="Half of the hit neurons are nice, and few of them make a good network",
    alt="Left: shares of nice neurons gather around one half, above a line at one "
    "quarter. Right: errors of two explicit networks fall with the number of hit "
    "neurons, both faster than a dashed line of slope minus one quarter, ours lower.",
)

# %% tags=["remove-cell"]
many = share[mp >= min(200, mp[-1])]  # (width, run, feature)
ledger.mean("nice-neurons", least=many.min((0, 2)), average=many.mean((0, 2)))

distance, loss, used = good[True][..., :3].transpose(2, 0, 1)  # (width, run)
bound = n_clusters / kink * x_norm * (mp**-0.25 + math.sqrt(2 * gamma))
ratio = np.where(empty[True], 0, distance / bound[:, None]).max(0)
ledger.mean("good-network", ratio=ratio, excess=loss[-1] - opt)
sizes = np.log2(used / (n_clusters * np.sqrt(mp)[:, None]))
ledger.mean("good-network-is-sparse", np.abs(sizes[1:]).max(0))
slopes = [stats.power_law_fit(mp, one).slope for one in distance.T]
ledger.mean("good-network-rate", slopes)

# %% tags=["remove-cell"]
# Lemma 3.14 gives a neuron of the set j the weight a* b* / (|set| b) = 2 / |set|.
counts = np.ma.masked_equal(good[True][..., 3:], 0)
length = 2 * np.sqrt((1 / counts).sum(-1)) * mp[:, None] ** 0.25
length = np.ma.array(length, mask=empty[True])[1:]
ledger.mean("good-network-read-out", length.max(0) / length.min(0))
saved = (networks[-1, :, 0] - networks[-1, :, 1]) / networks[-1, :, 0].mean(0)
ledger.mean("half-the-exponent", distance=saved[:, 0], neurons=saved[:, 2])

# %% [markdown]
# The left panel is a coin: the sign of $a^{(0)}$. On the right the thesis's explicit network uses about $r\sqrt{mp}$ neurons, and ours less than half of that. Which of the two is closer at the largest width is compared draw by draw in `half-the-exponent`. The distances of both lie one and a half to two orders of magnitude below the bound {eq}`eq-09-good`, which allows every neuron of $\Lambda_j$ to be wrong in the same direction and the data to lie in that direction, too. (Draws with an empty $\Lambda_j$ are left out.) What would the theorem ask for? For an excess of $\epsilon=0.1$ in this world:

# %%
# NBVAL_CHECK_OUTPUT
exact_p = 0.0355  # of this world with the default parameters, to three digits
m_needed = theory.needed_width(0.1, exact_p, 4, 0.4, 12.8, 5.0, 1.25)
print(f"neurons for the first excess term to be 0.1: 1e{math.log10(m_needed):.0f}")

# %% [markdown]
# Nine orders of magnitude above the largest width of the figure, at which the loss of the explicit network is already within 0.002 of that of the ground truth. The theorem is a guarantee that a polynomial suffices, not a design rule.

# %% [markdown]
# ## The derivation, IV: exclusive-or at any dimension
#
# Four clusters $\pm\boldsymbol\mu_1$, $\pm\boldsymbol\mu_3$ with $\lVert\boldsymbol\mu\rVert=\mu$, deviation $\sigma$, masses $\frac14$. By {eq}`eq-09-mixture`, with $s_j=\langle\mathbf w,D_j\rangle$,
#
# $$
# \begin{gathered}
# G=\tfrac\mu4\bigl(\Delta_1D_1-\Delta_3D_3\bigr)+\tfrac\sigma4\,\chi\,\frac{\mathbf w}{\lVert\mathbf w\rVert},\\
# \Delta_j=\Phi\Bigl(\frac{\mu s_j-b}{\sigma\lVert\mathbf w\rVert}\Bigr)-\Phi\Bigl(\frac{-\mu s_j-b}{\sigma\lVert\mathbf w\rVert}\Bigr),
# \end{gathered}
# $$ (eq-09-xor)
#
# where $\chi$ is the same difference of sums of densities. Only $s_1$, $s_3$ and $\lVert\mathbf w\rVert$ enter, so *any dimension is as cheap as two*. And the odds of the draw can be computed rather than bounded:
#
# ::::{prf:proposition} The odds of a good direction (ours)
# :label: prop-09-odds
#
# Let $d\to\infty$ with $q=\mu/(\sigma\sqrt d)$ and $\kappa=b/(\sigma_w\mu)$ fixed, and $\tan\alpha=\sqrt{(1-\gamma)^{-2}-1}$. The probability that $G$ of a random neuron lies in the cone of $D_1$ tends to
#
# $$
# \begin{gathered}
# p(\gamma)=\Pr\bigl[\lvert\delta(g_3)\rvert<\tan\alpha\,\lvert\delta(g_1)\rvert\bigr],\\
# \delta(g)=\Phi\bigl(q(g-\kappa)\bigr)-\Phi\bigl(q(-g-\kappa)\bigr),
# \end{gathered}
# $$ (eq-09-odds)
#
# with independent standard normal $g_1,g_3$. For $q\to0$, that is, at a fixed signal-to-noise ratio $R=\mu/\sigma$, it is $\frac2\pi\arccos(1-\gamma)$.
# ::::
#
# :::{prf:proof}
# For large $d$ the length of $\mathbf w$ is nearly constant, and of all that {eq}`eq-09-xor` depends on only $s_1$ and $s_3$ remain random, so that the odds are a probability in the plane. Indeed $s_j=\sigma_wg_j$ and $\lVert\mathbf w\rVert\to\sigma_w\sqrt d$, so $\Delta_j\to\delta(g_j)$, while the last term of {eq}`eq-09-xor` has norm $O(\sigma)$ against $\mu=q\sigma\sqrt d$. For small $q$, $\delta(g)\approx2q\,\varphi(q\kappa)\,g$: the direction of $G$ is that of $(g_1,-g_3)$, which is uniform on the circle. (There $\chi=O(q^2)$, so that the last term has norm $O(\sigma q^2)$, against $\mu q=R\sigma q$.)
# :::
#
# So *the odds do not depend on the dimension at all*. The thesis gets a $p$ that falls like $(\log d)^{-\sigma^2}$, because it wants $\gamma\to0$ and pays for it with a threshold that grows with $d$ (the *sure* set of Definition B.29).
#
# **How many samples does the step need?** At fixed $R$ the signal in {eq}`eq-09-xor` is small: $\mu\Delta_j/4\approx\frac{\mu R}{2\sqrt d}\varphi(c)\,g_j$, with thresholds $\pm c\,\sigma\lVert\mathbf w\rVert$. A sample of $n$ points adds noise of variance about $\sigma^2/(2n)$ to each of $d$ coordinates, and in the plane of the clusters, where points are longer, $\sigma^2(R^2+2)/(2n)$ in both together. The share of $\lVert\tilde G\rVert^2$ in the plane is therefore
#
# $$
# \frac{A}{A+\frac{d-2}{2n}},\qquad A=\frac{R^4\varphi(c)^2}{2d}+\frac{R^2+2}{2n},
# $$ (eq-09-align)
#
# and signal beats noise from $n\approx\frac{d^2}{R^4\varphi(c)^2}$ on: *quadratic in $d$*, where the thesis quotes $d^{1.5}$ for clusters at distance $\sqrt d$.
#
# ## The derivation, V: parities
#
# **Structured.** Let $k$ be odd and a neuron be active on the points whose block $j$ is all $+1$, and on hardly any others. Then $G\approx p_{\mathbf A}\sqrt k\,D_j$. Where the blocks are uniform the label does not go with any bit, and there the neuron is rarely active anyway. The ground truth is exact:
#
# ::::{prf:lemma} A parity of $k$ bits by $k+5$ neurons, none with a negative threshold (merged form ours)
# :label: lem-09-parity
#
# Let $k$ be odd, $h=1/\sqrt k$ and $z=\langle D_j,\mathbf x\rangle$. With $T(u)=\sum_{i=1,3,\dots,k}(-1)^{(k-i)/2}\,\mathrm{tent}(u-ih)$ and $\mathrm{tent}(u)=\sqrt k\,[\sigma(u+h)-2\sigma(u)+\sigma(u-h)]$, the function $T(z)-T(-z)$ is the product of the bits of the block where they are signs, and 0 where they are 0. Neighbouring tents cancel at the kinks they share, so that it has $k+5$ kinks, with thresholds $0,h,3h,\dots,kh,(k+1)h$ in each of the directions $\pm D_j$.
# ::::
#
# :::{prf:proof}
# With $i$ more plus than minus signs $z=ih$, and the product is $(-1)^{(k-i)/2}$; for odd $k$ it is odd in $z$. A tent has height 1 and is 0 from $\pm h$ on, where other values of $z$ are $2h$ away, and at $z=0$. A tent around $-ih$ in $z$ is the tent around $ih$ in $-z$.
# :::
#
# The sum over blocks is $\sum_j\mathrm{XOR}_j$, which is $\pm1$ when one block is alone and odd when all are uniform: hinge loss 0. The thesis writes tents left of 0 with *negative* thresholds, $3r(k+1)$ neurons, and so needs the second half of its Lemma 3.21: "We have $(D_j,+1),(D_j,-1)\in S_{p,\gamma,B_G}$ for all $j\in[r]$", where $p=\Theta\bigl((\tau\log d)^{-1/2}d^{-\Theta(\tau r)}\bigr)$, $\gamma=d^{-(\tau-2)}$ and $B_G=\sqrt k\,p_{\mathbf A}-O(\sqrt k\,d^{-\tau})$. It takes that half from $\mathbb E[y\mathbf x]=0$ (Remark B.45) and {eq}`eq-09-identity`.
#
# ::::{prf:proposition} The mean is not zero (an erratum)
# :label: prop-09-mean
#
# For odd $k\ge3$ and odd $r$, $\mathbb E[y\mathbf x]=2p_{\mathbf A}\sqrt k\sum_jD_j$.
# ::::
#
# :::{prf:proof}
# Block $j$ alone and all $+1$: $y\mathbf x=\sqrt kD_j$ plus background, which has mean zero; all $-1$: $y=-1$ and again $y\mathbf x=\sqrt kD_j$ plus background. On the uniform part, given the products of all blocks, which tell the label, each bit is still a fair coin.
# :::
#
# ::::{prf:proposition} Negative thresholds (corrects Lemma 3.21)
# :label: prop-09-negative
#
# Let $k\ge3$ and $r\ge3$ be odd, $0<2rp_{\mathbf A}\le1$, $0\le p_o\le\frac12$, $b<0$, and $c_r=2/\sqrt{r+3}$. Let $G(\mathbf w,b)=G_{\mathrm S}+G_{\mathrm U}$ be the contributions of the points with a single block and of the uniform part, $n\ge rk$ the number of nonzero bits of a point of the uniform part, and $B=\sum_{l\notin\mathbf A}w_l\phi_l$ the background's share in $\langle\mathbf w,\mathbf x\rangle$, where $\phi_l$ is the bit $l$.
#
# 1. For every $\mathbf w$, $\langle G_{\mathrm S},D_j\rangle=p_{\mathbf A}\sqrt k\,(1+q_j)$ with $q_j=\Pr\bigl[\bigl\lvert B-\sqrt k\,\lvert\langle\mathbf w,D_j\rangle\rvert\bigr\rvert<\lvert b\rvert\bigr]$. Therefore $0<\cos(G_{\mathrm S},D_j)\le c_r$.
# 2. For every $\mathbf w$ with $G\ne0$, $\lvert\cos(G,D_j)\rvert\le c_r+\lVert G_{\mathrm U}\rVert/(p_{\mathbf A}\sqrt{rk})$.
# 3. For $\mathbf w\sim\mathcal N(0,\sigma_w^2I)$,
#
# $$
# \mathbb E\lVert G_{\mathrm U}\rVert^2\le V=\frac{(1-2rp_{\mathbf A})^2}4\,\mathbb E\Bigl[\frac{rk}{\tbinom n{k-1}}+\frac{n-rk}{\tbinom n{k+1}}\Bigr]\le\frac k3\,r^{-(k-2)} .
# $$ (eq-09-uniform-part)
#
# So $(D_j,-1)$ is not a gradient feature for any $p>0$ and $\gamma\le1-c_r$ if there is no uniform part ($2rp_{\mathbf A}=1$). If there is one and $\gamma<1-c_r$, then $(D_j,-1)\in S_{p,\gamma,B_G}$ at most for
#
# $$
# p\le\frac V{p_{\mathbf A}^2\,rk\,(1-\gamma-c_r)^2}\le\frac{r^{-(k-1)}}{3p_{\mathbf A}^2(1-\gamma-c_r)^2} .
# $$ (eq-09-rare)
# ::::
#
# ::::{prf:proof}
# *1.* Block $j$ alone and all $+1$: $y=1$, and the neuron is active if $u+B>b$, $u=\sqrt k\langle\mathbf w,D_j\rangle$. All $-1$: $y=-1$, active if $-u+B>b$. In both, $y$ times a bit of the block is $+1$, so $\langle G_{\mathrm S},D_j\rangle=p_{\mathbf A}\sqrt k\bigl(\Pr[B>b-u]+\Pr[B>b+u]\bigr)$. The law of $B$ is the same in both cases and symmetric, so the sum is $\Pr[B<\lvert u\rvert+\lvert b\rvert]+\Pr[B>\lvert u\rvert-\lvert b\rvert]$. As $\lvert b\rvert>0$, the two events cover the line, and both occur where $\lvert B-\lvert u\rvert\rvert<\lvert b\rvert$: the sum is $1+q_j\in[1,2]$. The other components of $G_{\mathrm S}$ are in the background and lengthen it only, so the cosine is at most $(1+q_j)/\sqrt{(1+q_j)^2+r-1}\le2/\sqrt{4+r-1}$.
#
# *2.* The unit vector of $G$ is a sum of a part along $G_{\mathrm S}$, no longer than 1, and a part at right angles, of length $s$, the sine of the angle between $G$ and $G_{\mathrm S}$. So $\lvert\cos(G,D_j)\rvert\le c_r+s$, and $s\le\lVert G_{\mathrm U}\rVert/\lVert G_{\mathrm S}\rVert$, where $\lVert G_{\mathrm S}\rVert\ge p_{\mathbf A}\sqrt{rk}$ by part 1.
#
# *3. Characters.* Fix which $n$ bits are not 0. Their signs are uniform; let $\hat f(T)=\mathbb E[\mathbb 1\{\langle\mathbf w,\mathbf x\rangle>b\}\prod_{l\in T}\phi_l]$. The label is an odd function of the blocks' products, $y=\sum_{\lvert S\rvert\text{ odd}}m_S\prod_{j\in S}\prod_{l\in\mathbf A_j}\phi_l$ with $\sum_Sm_S^2=1$. So the uniform part has $\mathbb E[y\,\phi_l\,\mathbb 1\{\cdot\}]=\sum_Sm_S\hat f(T_S)$, where $T_S$ is the union of the blocks of $S$ without $l$ if $l$ is in it, and with $l$ if not. These sets differ and have even sizes, from $k-1$ if $l\in\mathbf A$ and from $k+1$ if not.
#
# *3. Random weights.* Changing signs of coordinates of $\mathbf w$ does not change its law, so $\mathbb E_{\mathbf w}\hat f(T)\hat f(T')=0$ for $T\ne T'$. Nor do permutations, so $\mathbb E_{\mathbf w}\hat f(T)^2$ depends on $t=\lvert T\rvert$ alone, and since $\sum_{T\ne\varnothing}\hat f(T)^2\le\frac14$ (the variance of an indicator), it is at most $\frac14/\tbinom nt$. It does not grow from $t$ to $t+2$: two inputs whose signs agree up to a factor $\mathbf z\in\{\pm1\}^n$ have jointly normal $\langle\mathbf w,\mathbf x\rangle$ with correlation $\rho=\sum_lz_l/n$, both are active with probability $\sum_ia_i^2\rho^i$ (Mehler), so $\mathbb E_{\mathbf w}\hat f(T)^2=\sum_ia_i^2n^{-i}\,\mathbb E\bigl[\prod_{l\in T}z_l\,(\sum_lz_l)^i\bigr]$, and this last mean is $i!$ times the coefficient of $s^i$ in $\sinh^ts\cosh^{n-t}s$; but $\sinh^2s=\cosh^2s-1$, and $\sinh^ts\cosh^{n-t-2}s$ has no negative coefficient. Hence $\mathbb E_{\mathbf w}\bigl(\sum_Sm_S\hat f(T_S)\bigr)^2$ is at most $\frac14/\tbinom n{k-1}$ for the $rk$ relevant bits and $\frac14/\tbinom n{k+1}$ for the $n-rk$ others. Sum over $l$, and average over which bits are not 0 (Jensen). For the last bound, both fractions are largest at $n=rk$ when $n-rk$ is replaced by $n$; there the first is $(k-1)/\tbinom{rk-1}{k-2}$, the second at most $\frac{k+1}4/\tbinom{rk-1}{k-2}$, and the binomial is at least $r^{k-2}$.
#
# *Last.* $\lvert\cos(G,D_j)\rvert>1-\gamma$ needs $\lVert G_{\mathrm U}\rVert>(1-\gamma-c_r)\,p_{\mathbf A}\sqrt{rk}$ by part 2; Markov's inequality for the square.
# ::::
#
# So the second half of Lemma 3.21 is false for $r\ge3$ without a uniform part. With one and $p_{\mathbf A}\ge1/d$, {eq}`eq-09-rare` is below the lemma's $p$ if $r$ is fixed and $k\ge C\tau\log d$ with a constant $C$ that is large enough, given $r$ and the constants in that $p$. If $k$, $r$ are fixed and $p_o=\frac12$, then $n=d$, and exceptions are rare once $p_{\mathbf A}\gg d^{-(k-1)/2}$. *Not covered* are other cases, where {eq}`eq-09-rare` may be larger than the lemma's $p$ or than 1, thresholds $b=0$, and single neurons: with a uniform part the gradients of some come close to one feature, as the next cell shows. For $r=1$ the bound is 1, and the second half follows from the proof of the first by $G(-\mathbf w,-b)=2p_{\mathbf A}\sqrt kD_1-G(\mathbf w,b)$. Theorem 3.22 does not need negative thresholds, by {prf:ref}`lem-09-parity`.
#
# Two neurons with $k=r=3$ and no background. Their weights are equal within each block, $(1,-2,5)$ at $b=-5.5$ and $(1,-2,6)$ at $b=-4.5$:

# %%
# NBVAL_CHECK_OUTPUT
alone, all_bits = torch.eye(3).double().repeat_interleave(3, 1), cube[:, :9]
for p_a, weights, b in ((0.1, (1, -2, 5), -5.5), (0.02, (1, -2, 6), -4.5)):
    parts = []  # gradients from a single block, and from the uniform part
    for mass, x in ((6 * p_a, torch.cat([alone, -alone])), (1 - 6 * p_a, all_bits)):
        y = x.unflatten(1, (3, 3)).prod(2).sum(1).sign()
        w = torch.tensor(weights).double().repeat_interleave(3)[None]
        parts.append(mass * theory.sample_gradient(w, torch.tensor([b]), x, y)[0])
    seen = [probes.cosines(g, alone).max().item() for g in (parts[0], sum(parts))]
    print(f"p_A = {p_a}: cosine {seen[0]:.4f}, with the uniform part {seen[1]:.4f}")

# %% [markdown]
# **Uniform, $k$ even, $d$ odd.** For $\mathbf w\in\{\pm1\}^d$ and $\lvert b\rvert<1$ the indicator is $\frac12(1+\mathrm{Maj}(w_1x_1,\dots,w_dx_d))$, and $y\,x_j$ is the parity of $\mathbf A\triangle\{j\}$. With the Fourier coefficient $\xi_k$ of the majority at sets of size $k$,
#
# $$
# \begin{gathered}
# G_j=\tfrac12\,\xi_{k\mp1}\prod_{l\in\mathbf A\triangle\{j\}}w_l\quad(j\in\mathbf A:\ k-1,\ \ j\notin\mathbf A:\ k+1),\\
# \Bigl\lvert\frac{\xi_{k+1}}{\xi_{k-1}}\Bigr\rvert=\frac{k-1}{d-k}.
# \end{gathered}
# $$ (eq-09-uniform)
#
# The gradient is large exactly on the relevant bits. If $\mathbf w$ is constant there, which has probability $2^{-(k-1)}$, then $\cos(G,D)=\bigl(1+\frac{(k-1)^2}{k(d-k)}\bigr)^{-1/2}$. A sample of $n$ points adds variance $\frac1{2n}$ to every coordinate, while $\xi_{k-1}^2$ is of order $d^{-(k-1)}$: this is where $n\propto d^{k}$ comes from.
#
# **What fixed features cannot do.** The thesis cites a lower bound of Daniely and Malach. It is that of {prf:ref}`thm-08-fixed`, for features in $[-1,1]$, and counted as there it needs no special $k$:
#
# ::::{prf:proposition} Fixed features (Proposition 3.23, sharpened)
# :label: prop-09-fixed
#
# Let $\Psi:\mathbb R^d\to[-1,1]^N$ be any features, $r=1$, $p_{\mathbf A}=\frac14$, $p_o=\frac12$. For some set $\mathbf A$ of $k$ bits every $h=\langle\Psi,\mathbf v\rangle$ with $\lVert\mathbf v\rVert\le B$ has hinge loss at least $\frac12\Bigl(1-B\sqrt{N/\tbinom dk}\Bigr)$.
# ::::
#
# :::{prf:proof}
# With probability $\frac12$ the point is uniform on the cube, so $\mathcal L(h)\ge\frac12\,\mathbb E_{\mathrm{unif}}[1-y\,h]$, and $\mathbb E[yh]\le B\,\lVert\mathbb E[y\Psi]\rVert$. The labels of different $\mathbf A$ are orthonormal characters, so by Bessel $\sum_{\mathbf A}\mathbb E[y_{\mathbf A}\Psi_i]^2\le1$ for each $i$, and for at least one of the $\binom dk$ sets $\sum_i\mathbb E[y_{\mathbf A}\Psi_i]^2\le N/\binom dk$.
# :::
#
# For $k=d/16$ the binomial is at least $16^k$, so the loss is at least $\frac12-\frac B2\sqrt N\,4^{-k}$; the thesis has $2^{-k}$.

# %%
# NBVAL_CHECK_OUTPUT
for k in (3, 5, 9):
    z = np.linspace(-k - 1, k + 1, 2001)
    network, bumps = theory.parity_network(k), theory.parity_bumps(k)
    close = np.abs(network(z) - bumps(z)).max() < 1e-9
    sizes = f"{len(network.bias)} neurons instead of {len(bumps.bias)}"
    print(f"k = {k}: {sizes}, same function:", close, end=" ")
    print("| thresholds >= 0:", (network.bias >= 0).all())
even = [theory.parity_bumps(k)(cube[:, :k].sum(1) / k**0.5) for k in (2, 4, 8)]
ok = [
    np.abs(v - cube[:, :k].prod(1).numpy()).max() < 1e-9
    for v, k in zip(even, (2, 4, 8))
]
print("even k by tents (thresholds of both signs):", all(ok))
uniform = cube[:, :9]
sets = torch.combinations(torch.arange(9), 3)
characters = uniform[:, sets].prod(2)  # (point, set)
random_w = torch.randn(40, 9, generator=torch.Generator().manual_seed(1)).double()
psi = (uniform @ random_w.T - 1).clamp(min=0)
psi /= psi.amax(0)
bessel = (characters.T @ psi / len(psi)).square()  # (set, feature)
print("Bessel:", bool((bessel.sum(0) <= 1).all()), end=" | ")
print("some set is hard for all:", bool(bessel.sum(1).min() <= 40 / len(sets)))

# %% tags=["remove-cell"]
hardest = (bessel.sum(1).min() * len(sets) / psi.shape[1]).item()
largest = bessel.sum(0).max().item()
ledger.exact("fixed-features-share-the-parities", feature=largest, set=hardest)

# %% tags=["remove-cell"]
# The mixture's OPT: a cluster at 4 t sigma, hinge loss from X < 3 t, in closed form.
big_d, tau = 1000, 8
t = math.sqrt(tau * math.log(big_d))
tail = math.exp(-t * t / 2) / math.sqrt(2 * math.pi) - t * math.erfc(t / 2**0.5) / 2
printed = 3 / big_d**tau + 4 / (big_d ** (0.9 * tau - 1) * t)
ledger.exact("mixture-opt-as-printed", tail / t / printed)

# %% [markdown]
# <a id="09-experiments"></a>
# ## The experiments
#
# ### Samples: the gradient concentrates
#
# *Prediction:* the largest deviation of a neuron's gradient falls like $n^{-1/2}$; the $n^{-1/3}$ of the proof is generous.

# %%
sizes = np.array([100, 400, 1600, 6400])
deviation = np.zeros((len(sizes), 4 * replicas))
for r, g in enumerate(training.generators(seed, 4 * replicas)):
    w = sigma_w * torch.randn(50, cluster_dim, generator=g).double()
    b = torch.ones(50).double()
    exact, _ = theory.mixture_gradient(w, b, clusters)
    for i, n in enumerate(sizes):
        sampled, _ = theory.sample_gradient(w, b, *clusters.sample(n, g, torch.float64))
        deviation[i, r] = (sampled - exact).norm(dim=1).max()
moment = math.hypot(cluster_norm, cluster_dim**0.5)
scaled = deviation * sizes[:, None] ** (1 / 3) / moment
print("times n^(1/3) / sqrt(B_x2):", " ".join(f"{v:.2f}" for v in scaled.mean(1)))

# %% tags=["remove-cell"]
slope = [stats.power_law_fit(sizes, one).slope for one in deviation.T]
fall = scaled[0] - scaled[-1]
ledger.mean("gradient-concentration", slope=slope, constant=scaled[0], fall=fall)

# %% [markdown]
# ### Exclusive-or from end to end
#
# The full algorithm: one large step with decay on some points, then small steps on both layers with fresh points each. *Prediction* ({prf:ref}`thm-09-main`): what is aligned after the first step decides, and the first layer need not move much.


# %%
def sampled_gradients(start, samples):
    """Simplified gradients and responses, each network's from a sample of its own."""
    each = zip(start["w"], -start["b"], samples)
    both = [theory.sample_gradient(w, b, *one) for w, b, one in each]
    return [torch.stack(part) for part in zip(*both)]


def aligned(w, directions, level=0.95):
    """Share of neurons (replica,) whose |cosine| with some feature exceeds a level."""
    best = probes.cosines(w, directions).abs().amax(-1)
    return (best > level).double().mean(1)


xor = GaussianMixture.xor(xor_dim, math.sqrt(xor_dim))
streams = training.generators(seed, 4 * replicas)
start = symmetric_start(50, xor_dim, streams, 1.0, 1 / (1.5 * math.sqrt(xor_dim)))
fresh = training.Fresh(xor.sample, xor_batch, streams, device=device)
points = [xor.sample(8 * xor_batch, g) for g in streams]
w1 = first_step(start, *sampled_gradients(start, points), 2 / (0.15 * xor_dim))
began = w1["w"].to(device).flatten(1)
looks = {
    "aligned": lambda q: aligned(q["w"], xor.features),
    "moved": lambda q: (q["w"].flatten(1) - began).norm(dim=1) / began.norm(dim=1),
}
test, log_at = xor.sample(n_test, stream(777)), range(0, xor_steps + 1, 4)
end_to_end = learn(w1, fresh, xor_steps, 0.05, test, log_at=log_at, **looks)
before = aligned(start["w"], xor.features)

# %% tags=["hide-input"]
fig, axes = plt.subplots(1, 3, figsize=(7.5, 2.7))
titles = ("test error", "neurons on an axis", "first layer, moved by")
for ax, name, title in zip(axes, ("error", "aligned", "moved"), titles):
    ax.plot(end_to_end.steps + 1, end_to_end.log[name], color=NET, lw=1.3)
    ax.set(title=title, xlabel="step", ylim=(-0.02, None))
axes[1].plot(0, before.mean(), "o", color="#777777")
axes[1].annotate("before any step", (1, before.mean() + 0.01))
axes[1].set_ylim(-0.02, 0.5)
axes[2].set_ylim(0, 0.5)
figures.show(
    fig,
    title="Features are there after one step; the rest is reading them out",
    alt="Three panels over steps. Test error, up and down at first, is zero after some "
    "twenty steps; the share of aligned neurons jumps from zero to about a third "
    "at the first step and stays; the first layer moves by some tenth of its norm.",
)

# %% tags=["remove-cell"]
kept = end_to_end.log["aligned"]
at = int(np.searchsorted(end_to_end.steps, 40))
late = end_to_end.log["error"][min(at, len(kept) - 1) :].amax(0)
ledger.mean("xor-end-to-end", late)
change = kept[-1] - kept[0]
ledger.mean("xor-features-appear-at-once", before=before, after=kept[0], change=change)
ledger.mean("first-layer-moves-little", end_to_end.log["moved"][-1])

# %% [markdown]
# ### Where "beyond kernels" begins
#
# The thesis sets its theorem ($\sigma_B=O(1)$: means $\sqrt d$ away) beside a lower bound of $\Omega(d^2)$ features and samples for fixed features (Refinetti et al. ([Refinetti et al., 2021](../book/references.bib#refinetti2021classifying))). The bound belongs to another regime, $\mu/\sigma=O(1)$. *Two predictions.* Where the theorem says something, clusters are so far apart that a kernel needs a few dozen points in *any* dimension. At a fixed signal-to-noise ratio kernels do fall behind as $d$ grows with $n\propto d$, and the network does not, as long as $n$ is not far below the $d^2/(R^4\varphi^2)$ of {eq}`eq-09-align`.


# %%
def kernel_fit(x, y, at, ridge=0.1):
    """Values at new points of ridge regression with the network's tangent kernel."""
    gram = theory.relu_tangent_kernel(x, x)
    gram.diagonal().add_(ridge)
    weights = torch.cholesky_solve(y[:, None], torch.linalg.cholesky(gram))
    return (theory.relu_tangent_kernel(at, x) @ weights)[:, 0]


def random_fit(x, y, at, n_features, g, ridge=0.02):
    """The same with random ReLU features of a given number."""
    w = torch.randn(x.shape[1], n_features, generator=g) / x.norm(dim=1).mean()
    b = 0.5 * torch.randn(n_features, generator=g)
    hidden = (x @ w - b).clamp(min=0)
    weights = probes.ridge_fit(hidden, y[:, None], ridge)
    return ((at @ w - b).clamp(min=0) @ weights)[:, 0]


def wrong(values, y):
    return (values * y <= 0).double().mean().item()


easy = np.zeros((2, 8))
for i, d in enumerate((xor_dim, 4 * xor_dim)):
    far = GaussianMixture.xor(d, math.sqrt(d))
    at, truth = far.sample(n_test, stream(777))
    for r, g in enumerate(training.generators(seed, 8)):
        easy[i, r] = wrong(kernel_fit(*far.sample(48, g), at), truth)
print("tangent kernel with 48 points, mean test errors:", easy.mean(1).round(3))

# %%
multiples, runs = (2, 8, 32), 4  # samples over d, and runs


def first_gradients(d, samples):
    """Starts, a network for each sample, and their simplified gradients there."""
    runs = training.generators(seed + 500, len(samples))
    start = symmetric_start(25, d, runs, 1.0, d**-0.5)
    return start, sampled_gradients(start, samples)[0]


def plane_shares(d, samples):
    """Share of the gradients' squared length in the plane of the clusters."""
    g = first_gradients(d, samples)[1]
    return g[..., :2].square().sum((1, 2)) / g.square().sum((1, 2))


def compare_network(d, samples, test):
    """One step on all points, then small steps on batches of them: test errors."""
    start, g = first_gradients(d, samples)
    w1 = first_step(start, g, torch.zeros_like(start["a"]), 1.0)
    length = w1["w"].norm(dim=-1).median(1).values
    w1["w"] *= (2 / snr / length)[:, None, None]  # kinks at about half the means
    mixer = stream(5)

    def batch(step):
        picks = [torch.randint(len(s.y), (256,), generator=mixer) for s in samples]
        points = zip(*((s.x[k], s.y[k]) for s, k in zip(samples, picks)))
        return tuple(torch.stack(part) for part in points)

    batch = training.in_blocks(batch, device)
    return learn(w1, batch, compare_steps, 0.05, test).log["error"][-1]


# %%
names = ("network", "tangent kernel", "d random features", "d²/4 random features")
table = np.zeros((len(compare_dims), len(names), len(multiples), runs))
for i, d in enumerate(compare_dims):
    near = GaussianMixture.xor(d, snr)
    test = near.sample(2 * n_test, stream(777))
    streams, mixer = training.generators(seed, runs), stream(6)
    samples = [near.sample(k * d, g) for k in multiples for g in streams]
    table[i, 0] = compare_network(d, samples, test).view(-1, runs)
    for j, one in enumerate(samples):
        cell = table[i, :, j // runs, j % runs]
        cell[1] = wrong(kernel_fit(*one, test.x), test.y)
        # d features are so few that one draw of them says little.
        few = [wrong(random_fit(*one, test.x, d, mixer), test.y) for _ in range(8)]
        cell[2] = np.mean(few)
        cell[3] = wrong(random_fit(*one, test.x, d * d // 4, mixer), test.y)
bayes = theory.xor_bayes_error(snr)

# %%
plane_share = np.zeros((len(compare_dims), len(multiples), replicas))
predicted = np.zeros(plane_share.shape[:2])
for i, d in enumerate(compare_dims):
    near = GaussianMixture.xor(d, snr)
    for j, k in enumerate(multiples):
        streams = training.generators(seed, 12 * replicas)
        shares = plane_shares(d, [near.sample(k * d, g) for g in streams])
        plane_share[i, j] = shares.view(replicas, 12).mean(1)
        predicted[i, j] = theory.xor_alignment(k * d, d, snr, 1.0)

# %% tags=["hide-input"]
fig, axes = plt.subplots(1, 3, figsize=(7.5, 3.1))
style = ((NET, "o-"), (KERNEL, "s-"), (RANDOM, "^-"), (RANDOM, "v--"))
for ax, j in zip(axes, (1, 2)):
    for c, (color, marker) in enumerate(style):
        mean = table[:, c, j].mean(1)
        ax.plot(compare_dims, mean, marker, color=color, ms=5, label=names[c])
        ax.plot(compare_dims, table[:, c, j], marker[0], color=color, ms=3, alpha=0.5)
    ax.axhline(bayes, color=LINE, ls="--", lw=1)
    ax.set(xscale="log", xlabel="dimension $d$", ylim=(0, 0.7))
    ax.set_xticks(compare_dims, compare_dims, minor=False)
    ax.minorticks_off()
    ax.set_title(f"test error, $n={multiples[j]}d$")
axes[0].legend(fontsize=8, loc="upper left")
end = (compare_dims[-1], bayes - 0.012)
axes[1].annotate("best possible", end, ha="right", va="top", fontsize=8)
axes[2].plot([0, 1], [0, 1], color=LINE, lw=1)
for n, marker, x, seen in zip(multiples, "v^o", predicted.T, plane_share.mean(2).T):
    axes[2].plot(x, seen, marker, color=NET, label=f"$n={n}d$")
axes[2].set(xlabel="predicted", ylabel="measured", title="gradient in the plane")
axes[2].legend(fontsize=8)
figures.show(
    fig,
    title="Fixed features err more, and random ones fall behind as the dimension grows",
    alt="Three panels. Test errors over dimension at two sample sizes: the network "
    "lies lowest, near the dashed best possible error with more samples; the tangent "
    "kernel and random features lie above it and rise. Third: measured shares of the "
    "gradient in the plane lie near the diagonal against predicted ones.",
)

# %% tags=["remove-cell"]
first_draw = symmetric_start(1000, 32, training.generators(seed, 1), 1.0, 1 / 15)
shown = GaussianMixture.xor(32, 6.0)
exact = exact_gradients(first_draw, shown)[0][0]
fig, axes = plt.subplots(1, 2, figsize=(6.5, 3.4))
for w, look in (
    (first_draw["a"][0, :, None] * exact, {"color": NET, "label": "after one step"}),
    (first_draw["w"][0], {"histtype": "step", "ec": LINE, "lw": 2, "label": "before"}),
):
    turned = (torch.atan2(w[:, 1], w[:, 0]).rad2deg() + 45) % 360 - 45
    axes[0].hist(turned, bins=np.arange(-45, 316, 10), **look)
axes[0].set_xticks([0, 90, 180, 270], ["$D_1$", "$D_3$", "$-D_1$", "$-D_3$"])
axes[0].set(ylabel="neurons", title="angle in the plane", ylim=(0, 470))
axes[0].legend(fontsize=11, loc="upper right")
for c, (color, marker) in enumerate(style):
    mean = table[:, c, -1].mean(1)
    axes[1].plot(compare_dims, mean, marker, color=color)
    at = {"xytext": (0, 8 if c else -20), "textcoords": "offset points", "ha": "right"}
    axes[1].annotate(names[c], (compare_dims[-1], mean[-1]), color=color, **at)
axes[1].axhline(bayes, color=LINE, ls="--", lw=1)
axes[1].set(xlabel="dimension", ylim=(-0.04, 0.42), title="test error")
figures.show(
    fig,
    title="One step turns neurons to the clusters; fixed features fall behind",
    alt="Left: histogram of the neurons' angles, flat before the step and with four "
    "peaks at the directions of the clusters after it. Right: test errors over dimension; network lowest, near a dashed line.",
    opening=True,
)

# %% tags=["remove-cell"]
most = table[:, :, -1]  # (dimension, method, run) at the largest n
ledger.mean("network-near-bayes", most[:, 0].max(0) - bayes)
behind = most[1:, [1, 3]] - most[1:, :1]
ledger.mean("fixed-features-lag", gap=behind.min((0, 1)), few=most[:, 2].min(0))
rise = table[-1, :, 1] - table[0, :, 1]  # (method, run)
ledger.mean("kernels-worsen-with-dimension", network=rise[0], more=rise[2] - rise[0])
ledger.mean("tangent-kernel-falls-behind", rise[1] - rise[0])
off = np.abs(plane_share - predicted[..., None]).max((0, 1))
ledger.mean("first-step-signal-and-noise", off)
ledger.each("fixed-features-need-d-squared", (easy > 0.05).all(0))

# %% [markdown]
# So few as $d$ random features depend much on their draw; their errors are means over eight draws for each sample.
#
# The lesson is in the scaling. With clusters at distance $\sqrt d$ the tangent kernel makes no errors from 48 points in $d=400$, so the separation that the thesis states beside its theorem is not there; the ledger has it as failing. At $R=3$ it is there, at moderate size: random features fall behind further as $d$ grows; whether the tangent kernel also does so is undecided with most seeds (`tangent-kernel-falls-behind`, 18 of 20). And {eq}`eq-09-align` says where the network's own advantage ends: with $n\propto d$ and a single feature step, the plane's share falls like $1/d$, so for very large $d$ the later steps have to do the work.
#
# ### Sure neurons
#
# *Prediction:* by {prf:ref}`prop-09-odds` the odds of a good direction hardly move with $d$. A neuron is *sure* of $D_1$ if $\langle\mathbf w,\boldsymbol\mu_1\rangle$ is at least 1.2 times the threshold and $\langle\mathbf w,\boldsymbol\mu_3\rangle$ no larger than usual. The share of such neurons shrinks, by the closed form $Q(1.2\,\sigma\sqrt{\tau\log\log d})\,(1-2Q(\sqrt2\,\sigma))$, and its members should all be within $1-\cos\le\sigma/\sqrt d$ of a feature (Lemma B.37). We doubt the latter: {eq}`eq-09-xor` gives $1-\cos\approx\frac12(\Delta_3/\Delta_1)^2$, and $\Delta_3$ of a sure neuron is small only like a power of $\log d$. The proof loses this term between (B.386) and (B.387), where $\boldsymbol\mu_3^\top D_3=\sqrt d$ is dropped.

# %%
# share, closed form, in cone, hits, their limit, of each dimension and run
sure = np.zeros((5, len(sure_dims), replicas))
for i, d in enumerate(sure_dims):
    threshold, norm = math.sqrt(d * math.log(math.log(d))), math.sqrt(d)
    limit = math.sqrt(2 / math.log(math.log(d))) * threshold
    for r, g in enumerate(training.generators(seed, replicas)):
        s = torch.randn(draws, 2, generator=g).double()
        rest = torch.tensor(np.random.default_rng(seed + r).chisquare(d - 2, draws))
        size = (s.square().sum(1) + rest).sqrt()
        plane, length = theory.xor_gradient(s, size, threshold, norm)
        chosen = (s[:, 0] * norm >= 1.2 * threshold) & (s[:, 1].abs() * norm <= limit)
        cosine = plane[:, 0].abs() / length
        sure[:, i, r] = (
            chosen.double().mean(),
            theory.xor_sure_probability(d),
            (1 - cosine[chosen] <= 1 / norm).double().mean(),
            (cosine > 1 - gamma).double().mean(),
            theory.xor_hit_probability(gamma, threshold / norm, 1.0),
        )

# %% tags=["hide-input"]
fig, axes = plt.subplots(1, 2, figsize=(7.5, 3.0))
axes[0].semilogx(sure_dims, sure[3], "o", color=NET)
axes[0].semilogx(sure_dims, sure[4, :, 0], color=LINE, lw=1.2)
axes[0].annotate("in a cone of half-width gamma", (sure_dims[0], sure[3, 0, 0] + 0.04))
axes[0].semilogx(sure_dims, sure[0], "s", color=ORANGE)
axes[0].semilogx(sure_dims, sure[1, :, 0], color=LINE, lw=1.2, ls="--")
axes[0].annotate("sure", (sure_dims[0], sure[0, 0, 0] + 0.015))
axes[0].set(ylim=(0, 0.3), xlabel="dimension $d$", title="probability of a neuron")
axes[1].semilogx(sure_dims, sure[2], "s-", color=ORANGE)
axes[1].set(ylim=(0, 1.02), xlabel="dimension $d$")
axes[1].set_title("share of sure neurons in their cone")
figures.show(
    fig,
    title="Good directions are as likely in 4,000 dimensions as in 50",
    alt="Left: the probability of a good direction is flat in the dimension, at about "
    "a fifth, on its line; that of a sure neuron falls slowly on a dashed line. "
    "Right: the share of sure neurons in their shrinking cone falls.",
)

# %% tags=["remove-cell"]
limits = sure[[1, 4]]  # (quantity, dimension, run)
error = np.sqrt(limits * (1 - limits) / draws)
off = np.abs(sure[[0, 3]] - limits)
ledger.mean("sure-probability", (off[0] / error[0]).max(0))
beyond, ratio = (off[1] - 5 * error[1]).max(0), sure[3, -1] / sure[3, 0]
ledger.mean("odds-do-not-depend-on-dimension", beyond=beyond, ratio=ratio)
ledger.mean("sure-neurons-in-their-cone", sure[2, -1])

# %% [markdown]
# ### Linear data: always-on neurons
#
# With the threshold $-\tilde b$ far below the data, a neuron is active everywhere and $G\to\mathbb E[y\mathbf x]=\rho\,\mathbf w^*$, $\rho=\beta+\frac12$. *Prediction:* norm and cosine tend to $\rho$ and 1 as $\tilde b/(\sqrt d\,\sigma_w)$ grows, and the network classifies perfectly within a few steps.

# %%
line = LinearMargin(20, 0.5)
levels = np.array([0, 1, 2, 4, 8])  # threshold over sqrt(d) sigma_w
w = torch.randn(replicas, 400, 20, generator=stream(777)).double()
norms, cosines = np.zeros((2, len(levels), replicas))  # means, least ones
for i, level in enumerate(levels):
    b = torch.full((replicas, 400), -level * math.sqrt(20)).double()
    g = theory.linear_gradient(w, b, 0.5)
    length = g.norm(dim=-1)
    norms[i], cosines[i] = length.mean(1), (g[..., 0] / length).amin(1)
streams = training.generators(seed, replicas)
start = symmetric_start(20, 20, streams, 1.0, 1 / (4 * math.sqrt(20)))
points = [line.sample(2000, g) for g in streams]
w1 = first_step(start, *sampled_gradients(start, points), 1.0)
fresh = training.Fresh(line.sample, 200, streams, device=device)
test = line.sample(n_test, stream(777))
margin = learn(w1, fresh, 50, 0.1, test).log["error"][-1]
print("norm  ", " ".join(f"{v:.3f}" for v in norms.mean(1)))
print("cosine", " ".join(f"{v:.3f}" for v in cosines.mean(1)))

# %% tags=["remove-cell"]
rise, ends = np.diff(norms, axis=0).min(0), {"norm": norms[-1], "cosine": cosines[-1]}
ledger.mean("linear-always-on", rise=rise, **ends, error=margin)

# %% [markdown]
# ### Structured parities against fixed features
#
# One step on a sample, then the convex problem of the warm-up theorem on the first 4,000 points of the *same* sample, solved by a library. The same solver reads out the untouched first layer, and the tangent kernel has the same points. $k=3$ and $k=5$ with one block are the instances of Daniely and Malach ([Daniely and Malach, 2020](../book/references.bib#daniely2020parities)); the third has three blocks. A linear rule needs no features: the sign of the sum of the block's bits errs on 37.5 % of the points for $k=3$ and on 15.6 % for $k=5$, so that 15 %, the limit of the claim, is what such a rule nearly reaches.


# %%
def read_out(hidden, y):
    """Signs from features: the least regularised squared hinge loss, solved."""
    solver = LinearSVC(C=1.0, dual=False, tol=1e-3, fit_intercept=False)
    return solver.fit(hidden.numpy(), y.numpy())


def parity_arms(world, n, m, inverse, g):
    """Test errors of read-outs after and before the step, and of the kernel."""
    sigma = 1 / (inverse * math.sqrt(world.square_norm))
    start = {k: v[0] for k, v in symmetric_start(m, world.dim, [g], 1.0, sigma).items()}
    (x, y), (at, truth) = world.sample(n, g), world.sample(n_test, g)
    vectors, _ = theory.sample_gradient(start["w"], -start["b"], x, y)
    along = (vectors @ world.features.to(vectors).T).abs()
    # a block of all +1 is to lie at about twice the threshold
    reach = 2 / (along.amax(1) * math.sqrt(world.block)).median()
    stepped = reach * start["a"][:, None] * vectors
    errors = []
    for w in (stepped, start["w"]):
        hidden = [(z @ w.T + start["b"]).clamp(min=0) for z in (x[:4000], at)]
        errors.append(1 - read_out(hidden[0], y[:4000]).score(hidden[1], truth.numpy()))
    errors.append(wrong(kernel_fit(x[:4000], y[:4000], at), truth))
    cosine = (along / vectors.norm(dim=1, keepdim=True)).amax(1)
    return [*errors, cosine.median().item()]


worlds = {
    "k = 3": (BlockParity(48, 3), 1, 1, 1.0),
    "k = 5": (BlockParity(80, 5), 2, 1, 1.0),
    "three blocks of 3": (BlockParity(30, 3, 3, 0.1, 0.1), 5, 2, 1.0),
}
arms = np.zeros((len(worlds), 3, 4))  # (world, run, value)

# %%
for i, (world, more, wide, inverse) in enumerate(worlds.values()):
    for r, g in enumerate(training.generators(seed, 3)):
        sizes_of = (more * parity_points, wide * parity_neurons)
        arms[i, r] = parity_arms(world, *sizes_of, inverse, g)

# %% tags=["hide-input"]
fig, ax = plt.subplots(figsize=(7.5, 2.8))
for c, (name, color, marker) in enumerate(
    (("after one step", NET, "o"), ("before it", RANDOM, "^"), ("kernel", KERNEL, "s"))
):
    style = {"marker": marker, "shift": 0.15 * (c - 1), "size": 6, "label": name}
    figures.runs(ax, dict(zip(worlds, arms[..., c])), color, summary=None, **style)
ax.set(ylabel="test error", ylim=(-0.02, 0.45))
ax.legend(ncols=3, loc="upper left")
ax.set_title("One step turns parities into a linear problem")
figures.show(
    fig,
    alt="Test errors for three parity problems: near zero after one step, between "
    "0.15 and 0.4 before it and for the tangent kernel.",
)

# %% tags=["remove-cell"]
one_block, three_blocks = arms[:2], arms[2]
network, fixed = one_block[..., 0].max(0), one_block[..., 1:3].min((0, 2))
ledger.mean("parity-beyond-kernels", network=network, fixed=fixed)
ledger.mean("parity-direction", one_block[..., 3].min(0))
margins = three_blocks[:, 1:3].min(1) / 2 - three_blocks[:, 0]
ledger.mean("parity-three-blocks", margins)

# %% [markdown]
# ### Which threshold carries which feature
#
# For three blocks ($k=5$), gradients from a sample, for random neurons at thresholds $b=\beta\sqrt{\mathbb E\lVert\mathbf x\rVert^2}$ of either sign. *Predictions* ({prf:ref}`prop-09-mean`, {prf:ref}`prop-09-negative`): $\mathbb E[y\mathbf x]\ne0$. At negative thresholds the points with a single block cannot bring a cosine above $2/\sqrt6=0.82$, and the uniform part (mass 0.4) brings at most 11 % of random neurons above 0.95 by {eq}`eq-09-rare`; far below zero neurons see the sum of all features, at cosine $1/\sqrt3$.

# %%
blocks3 = BlockParity(24, 5, 3, 0.1, 0.1)
levels = np.array([-2, -1.5, -1, -0.5, 0.5, 1, 1.5, 2])
axes3 = blocks3.features.float()
mean_exact = 2 * blocks3.signal * math.sqrt(blocks3.block)
mean_scores = np.zeros((2, replicas))  # away from 0 and from this, standard errors
cosines = np.zeros((len(levels), replicas, 100))
with_sum = np.zeros((len(levels), replicas))  # median cosine with the sum of all
draw, neurons = stream(777), stream(8)
for r in range(replicas):
    x, y = blocks3.sample(check_points, draw)
    signed = y[:, None] * x @ axes3.T
    mean, error = signed.mean(0), signed.std(0) / len(x) ** 0.5
    mean_scores[:, r] = [((mean - c).abs() / error).max() for c in (0, mean_exact)]
    z = x @ torch.randn(24, 100, generator=neurons)
    for i, level in enumerate(levels):
        on = (z > level * math.sqrt(blocks3.square_norm)).float()
        g = on.T @ (y[:, None] * x) / len(x)
        cosines[i, r] = probes.cosines(g, axes3).abs().amax(1)
        with_sum[i, r] = probes.cosines(g, axes3.sum(0)[None]).abs().median()

# %% tags=["hide-input"]
fig, ax = plt.subplots(figsize=(7.5, 2.8))
names_of = [f"{v:g}" for v in levels]
figures.distributions(ax, dict(zip(names_of, cosines.reshape(len(levels), -1))))
ax.axhline(2 / math.sqrt(6), color=LINE, lw=1.2)
ax.axhline(1 / math.sqrt(3), color=LINE, lw=1.2, ls="--")
ax.annotate(r"$2/\sqrt{6}$", (-0.45, 2 / 6**0.5 + 0.02))
ax.annotate(r"$1/\sqrt{3}$", (-0.45, 1 / 3**0.5 - 0.11))
ax.set(xlabel="threshold, in root mean squares of $\\langle w, x\\rangle$")
ax.set_ylabel("largest cosine")
ax.set_title("At negative thresholds neurons see blends of features")
figures.show(
    fig,
    alt="Boxes of the largest cosine with a feature over eight thresholds. At the four "
    "negative ones all lie below a line at 0.82 and sink to a dashed line at 0.58; at "
    "the positive ones they reach nearly one.",
)

# %% tags=["remove-cell"]
ledger.mean("parity-mean-is-zero", mean_scores[0])
ledger.mean("parity-mean", mean_scores[1])
low, high = (cosines[side].max((0, 2)) for side in (levels < 0, levels > 0))
ledger.mean("negative-thresholds-are-features", low)
ledger.mean("negative-thresholds-see-the-sum", with_sum[0])
ledger.mean("positive-thresholds-are-features", positive=high, negative=low)

# %% [markdown]
# ### Uniform parities
#
# One step from signs $\mathbf w\in\{\pm1\}^d$ with thresholds on the grid $\{j/k\}$ and step $2/(k\lvert\xi_{k-1}\rvert)$, which makes relevant weights $\pm\frac1k$ so that all kinks of the ground truth are there (the thesis has half that step, which a lost factor $\frac12$ in its Lemma B.63 explains). Then a frozen first layer, as in Theorem B.56. All $2^d$ points can be listed, so a sample is a vector of multinomial counts. *Prediction:* cosines follow the closed form with noise, and parities are read off once the cosine is large.


# %%
def parity_step(points, k, m, n, g):
    """First layer after a step from n samples (None: all points); cosines where w is
    constant on the relevant bits."""
    d = points.shape[1]
    w = torch.randn(m, d, generator=g).sign()
    b = (torch.randint(1, 2 * k, (m,), generator=g) - k) / k
    if n is None:
        vectors = theory.uniform_parity_gradient(w.double(), k).float()
    else:
        rng = np.random.default_rng(int(torch.randint(2**31, (1,), generator=g)))
        counts = torch.tensor(rng.multinomial(n, np.full(len(points), 1 / len(points))))
        push = counts.float() * points[:, :k].prod(1) / n
        vectors = (points @ w.T > b).float().T @ (push[:, None] * points)
    constant = w[:, :k].sum(1).abs() == k
    along = vectors[constant, :k].sum(1).abs() / math.sqrt(k)
    cosine = along / vectors[constant].norm(dim=1)
    step = 2 / (k * abs(theory.majority_coefficient(k - 1, d)))
    return step * torch.cat([vectors, -vectors]), torch.cat([b, b]), cosine.mean()


points, settings = cube_of(uniform_dim), []

# %%
for k, m, sizes_k in ((2, 64, (1000, 4000)), (4, 128, (*uniform_sizes, None))):
    label = points[:, :k].prod(1)
    for n in sizes_k:
        for g in training.generators(seed, replicas):
            w, b, cosine = parity_step(points, k, m, n, g)
            picks = torch.randint(len(points), (2, n_test), generator=g)
            hidden = [(points[i] @ w.T - b).clamp(min=0) for i in picks]
            solved = read_out(hidden[0], label[picks[0]])
            error = 1 - solved.score(hidden[1], label[picks[1]].numpy())
            settings.append((k, n or math.inf, float(cosine), error))
uniform_runs = np.array(settings).reshape(-1, replicas, 4)  # (k and n, run, value)

# %% tags=["hide-input"]
fig, axes = plt.subplots(1, 2, figsize=(7.5, 3.1), sharex=True)
four = uniform_runs[uniform_runs[:, 0, 0] == 4]
four_at = np.minimum(four[..., 1], 30 * max(uniform_sizes))
n_line = np.geomspace(min(uniform_sizes) / 3, 30 * max(uniform_sizes), 60)
curve = [theory.parity_cosine(4, uniform_dim, n) for n in n_line]
axes[0].semilogx(n_line, curve, color=LINE, lw=1.2)
axes[0].semilogx(four_at, four[..., 2], "o", color=NET)
axes[0].set(ylim=(0, 1), title="cosine with the feature", xlabel="samples of the step")
axes[1].semilogx(four_at, four[..., 3], "o", color=NET)
axes[1].axhline(0.5, **figures.LINES["chance"])
axes[1].set(ylim=(-0.02, 0.55), title="test error", xlabel="samples of the step")
for ax, height in zip(axes, (0.8, 0.03)):
    ax.annotate("all points", (n_line[-1], height), ha="right")
figures.show(
    fig,
    title="A uniform parity of four bits: error falls once the gradient is seen",
    alt="Left: cosines rise with the number of samples along a curve. Right: test "
    "error is far above zero for few samples, near zero for many and for all points.",
)

# %% tags=["remove-cell"]
sized = uniform_runs[:, 0, :2]  # k and n
exact = np.array([theory.parity_cosine(int(k), uniform_dim, n) for k, n in sized])
off = np.abs(uniform_runs[..., 2] - exact[:, None])[exact >= 0.7]
ledger.mean("uniform-parity-cosine", off.max(0))
two = uniform_runs[sized[:, 0] == 2][..., 3].max(0)
ledger.mean("uniform-parity-learned", four=four[-2:, :, 3].max(0), two=two)
ledger.mean("uniform-parity-needs-samples", four[0, :, 3])

# %% [markdown]
# ### Multi-index targets
#
# Damian et al. ([Damian et al., 2022](../book/references.bib#damian2022representations)) first subtract the affine part, take one step from $b=0$, draw new thresholds, and fit the second layer (here: by ridge regression). *Prediction* from {eq}`eq-09-quadratic`: rows become $H\mathbf w$ plus noise, so that the test error depends on $n/d^2$, whatever $d$ is, while random features fall behind as $d$ grows.


# %%
def index_errors(world, n, g):
    """Mean squared test errors (of variance 1) after the step, and without it."""
    (x, y), (at, truth) = world.sample(n, g), world.sample(2 * n_test, g)
    offset, slope = y.mean(), (y[:, None] * x).mean(0)
    rest = y - offset - x @ slope
    w = torch.randn(index_neurons, world.dim, generator=g)
    b = torch.randn(index_neurons, generator=g)
    vectors, _ = theory.sample_gradient(w, torch.zeros_like(b), x, rest)
    out = []
    for rows in (vectors / vectors.norm(dim=1).mean(), w / world.dim**0.5):
        hidden, new = ((z @ rows.T - b).clamp(min=0) for z in (x, at))
        weights = probes.ridge_fit(hidden, rest[:, None], 1e-3)
        guess = offset + at @ slope + (new @ weights)[:, 0]
        out.append((guess - truth).square().mean().item())
    return out


kinds, fractions = ("quadratic", "cubic"), (0.5, 2.0)

# %%
errors = [
    index_errors(MultiIndex(d, kind), int(f * d * d), g)
    for kind, f, d in itertools.product(kinds, fractions, index_dims)
    for g in training.generators(seed, 2 * replicas)
]
# (kind, n / d^2, dimension, run, arm)
index = np.array(errors).reshape(len(kinds), len(fractions), -1, 2 * replicas, 2)

# %% tags=["hide-input"]
fig, axes = plt.subplots(1, 2, figsize=(7.5, 2.9), sharey=True)
for ax, kind, one in zip(axes, kinds, index):
    for f, mark, face in ((0, "o--", "white"), (1, "o-", None)):
        for arm, color, name in ((0, NET, "after one step"), (1, RANDOM, "without")):
            label = f"{name}, $n={fractions[f]:g}d^2$"
            mean = one[f, :, :, arm].mean(1)
            ax.plot(index_dims, mean, mark, color=color, mfc=face or color, label=label)
    ax.set(xscale="log", xlabel="dimension $d$", title=kind, ylim=(0, 3))
    ax.set_xticks(index_dims, index_dims)
    ax.minorticks_off()
axes[0].set_ylabel("mean squared error")
axes[0].legend(fontsize=8, loc="upper left")
figures.show(
    fig,
    title="With samples in proportion to d², one step makes the dimension irrelevant",
    alt="Errors over dimension for two targets. After one step and with two d squared "
    "samples they are low and flat; without the step they rise to one.",
)

# %% tags=["remove-cell"]
quadratic, cubic = index[:, 1, :, :, 0]  # (dimension, run) at the larger n
ledger.mean("multi-index-learned", quadratic=quadratic.max(0), cubic=cubic.max(0))
span, without = np.ptp(quadratic, axis=0), index[:, 1, -1, :, 1].min(0)
ledger.mean("multi-index-collapse", range=span, without=without)

# %% [markdown]
# ### Winning tickets
#
# $\tilde{\mathbf a}$ lives on few neurons. **Proposition B.1**: train *only these* after the first step, and the guarantee of {prf:ref}`thm-09-main` is the same. The proof is the proof: {eq}`eq-09-online` is used with $\theta^*=\tilde{\mathbf a}$ only, and dropping neurons outside its support changes neither side for the worse. The ticket is not in the initial weights; it is written by the first step. *Prediction:* the best neurons, one a cluster in direction and length, four out of 400, win on exclusive-or. As many random ones do not, nor do the same four set back to their initial weights.


# %%
def pick(params, index):
    """Sub-networks of the neurons (replica, k)."""
    return {k: training.pick_own(v, index) for k, v in params.items()}


ticket_world = GaussianMixture.xor(64, 6.0)
start = symmetric_start(100, 64, training.generators(seed, ticket_runs), 1.0, 1 / 9)
g, response = exact_gradients(start, ticket_world)
D = ticket_world.features
cosine = start["a"].sign()[..., None] * probes.cosines(g, D)
hits = cosine.amax(-1) > 0.95
eta = (2 / 6.0 / g.norm(dim=-1)[hits].median()).item()  # kinks at half the means
w1 = first_step(start, g, 0 * response, eta)
# Lemma 3.14 asks for the direction and for the length, here 1/3 for kinks at |mu| / 2
fitness = cosine - 0.5 * (3 * w1["w"].norm(dim=-1, keepdim=True) - 1).abs()
fitness = fitness.masked_fill((start["b"] > 0)[..., None], -9)  # thresholds > 0
reset = {**start, "a": torch.zeros_like(start["a"])}
test = ticket_world.sample(2 * n_test, stream(777))
streams = training.generators(seed + 50, ticket_runs)
ticket_points = functools.cache(  # the same in all races
    training.Fresh(ticket_world.sample, 128, streams, device=device)
)


# %%
def race(arms, steps, step, frozen=()):
    """Errors (look, run) of sub-networks, all trained on the same fresh points."""
    joined = {k: torch.cat([one[k] for one in arms.values()]) for k in w1}

    def same_for_all(t):
        x, y = ticket_points(t)
        return x.repeat(len(arms), 1, 1), y.repeat(len(arms), 1)

    looks = range(0, steps + 1, 25)
    log = learn(joined, same_for_all, steps, step, test, frozen, looks).log["error"]
    return dict(zip(arms, log.chunk(len(arms), 1)))


shufflers = training.generators(seed, ticket_runs)
shuffled = torch.stack([torch.randperm(400, generator=g) for g in shufflers])
tickets = {}
for u in (1, 2, 4):
    best = fitness.topk(u, 1).indices.flatten(1)
    arms = {"ticket": pick(w1, best), "random": pick(w1, shuffled[:, : 4 * u])}
    arms["reset"] = pick(reset, best)
    for frozen in ((), ("w",)):
        tickets[u, bool(frozen)] = race(arms, ticket_steps, 0.05, frozen)
full = race({"full": w1}, 50, 0.02, ("w",))["full"]

# %% tags=["hide-input"]
fig, axes = plt.subplots(1, 3, figsize=(7.5, 2.8), sharey=True)
steps = np.arange(0, ticket_steps + 1, 25)
tones = {"ticket": (NET, "-"), "random": (RANDOM, "--"), "reset": (ORANGE, "-.")}
for ax, u in zip(axes, (1, 2, 4)):
    for name, (color, style) in tones.items():
        log = tickets[u, True][name]
        ax.plot(steps, log, color=color, lw=0.7, alpha=0.5)
        ax.plot(steps, log.mean(1), style, color=color, lw=2.2, label=name)
    ax.set(xlabel="step", title=f"{4 * u} of 400 neurons", ylim=(-0.02, 1.02))
axes[0].set_ylabel("test error")
axes[2].legend()
figures.show(
    fig,
    title="Four neurons win, if they are the right ones, after the first step",
    alt="Test errors over steps with frozen first layers. The ticket drops to zero at "
    "once, with four, eight or sixteen neurons; random neurons stay high with four "
    "and come down the further the more there are; the reset ticket stays high.",
)


# %% tags=["remove-cell"]
def won(u, frozen, name, look=-1):
    return tickets[u, frozen][name][look] < 0.05


both = won(1, True, "ticket") & won(1, False, "ticket")
ledger.each("winning-ticket", both & (full[-1] < 0.05))
others = {name: won(1, True, name) for name in ("random", "reset")}
ledger.each("tickets-are-not-random", **others)
ticket = won(2, True, "ticket") & won(4, True, "ticket")
early = won(2, True, "reset") | won(4, True, "reset")
ledger.each("larger-tickets", ticket=ticket, reset=early)
ledger.each("random-tickets-when-trained", won(2, False, "random"))
ledger.each("tickets-are-as-fast", won(1, True, "ticket", 1))

# %% [markdown]
# Drawn are the runs with a frozen first layer, where the difference is largest. If the first layer is trained as well, eight random neurons mostly do as well as eight chosen ones, and with sixteen even the reset ones come down: where there are many more neurons than clusters, a ticket is a matter of speed.
#
# ### Simple things first
#
# The theorem's time grows with the size $r$ of the comparison network, so a network must match the best *small* combination of gradient features before the best large one. Three exclusive-or problems in orthogonal planes, with masses 0.60, 0.28 and 0.12. Rare planes are at a double disadvantage: their push is weaker, and fewer neurons are aligned with them. (In [chapter 2](02_fine_grained_labels.ipynb) the frequent feature also uses up the error that drives the rare one; here each plane has points of its own.) *Prediction:* they are learned in the order of their masses, and the third is still at chance when the first is done.

# %%
masses = (0.6, 0.28, 0.12)
three = GaussianMixture.xor(32, 6.0, masses)
streams = training.generators(seed, 3)
start = symmetric_start(bias_neurons, 32, streams, 1.0, 1 / 9)
g, response = exact_gradients(start, three)
eta = (2 / 6.0 / g.norm(dim=-1).quantile(0.9)).item()
w1 = first_step(start, g, 0 * response, eta)
alone = [GaussianMixture(three.means[j : j + 4], three.labels[:4]) for j in (0, 4, 8)]
planes = [one.sample(max(n_test // 4, 50), stream(777)) for one in alone]
px, py = (torch.cat(v).expand(3, *torch.cat(v).shape).to(device) for v in zip(*planes))


def by_plane(q):
    """Errors and hinge losses (replica, plane, 2) on the three planes."""
    margin = (py * two_layer_outputs(q, px)).unflatten(1, (3, -1))
    hinge = (1 - margin).clamp(min=0)
    return torch.stack([(margin <= 0).float().mean(2), hinge.mean(2)], -1)


fresh = training.Fresh(three.sample, 128, streams, device=device)
looks = training.log_steps(bias_steps, 21)
run = learn(w1, fresh, bias_steps, 0.004, planes[0], log_at=looks, planes=by_plane)
order = run.log["planes"]

# %% tags=["hide-input"]
fig, axes = plt.subplots(1, 2, figsize=(7.5, 3.0))
for j, color in enumerate((NET, GREEN, ORANGE)):
    for ax, c in zip(axes, (0, 1)):
        ax.plot(looks, order[:, :, j, c], color=color, lw=1)
    end = (1.03 * looks[-1], order[-1, :, j, 1].mean())
    axes[1].annotate(f"mass {masses[j]}", end, color=color, va="center")
axes[1].set_xlim(right=1.4 * looks[-1])
axes[0].set(title="error on each plane", xlabel="step", ylim=(-0.02, 1.02))
axes[1].set(title="hinge loss on each plane", xlabel="step", ylim=(-0.02, 1.15))
figures.show(
    fig,
    title="The heaviest plane is learned first, and the lightest is not yet begun",
    alt="Errors and hinge losses of three planes over steps. The heaviest falls within "
    "some tens of steps, the second over hundreds, the third stays where it was.",
)

# %% tags=["remove-cell"]
half = (order[..., 1] < 0.5).double()  # (look, replica, plane)
when = torch.where(half.any(0), half.argmax(0), len(looks) - 1)  # first look below 0.5
wait = np.diff(np.asarray(looks)[when], axis=1)  # steps between planes
lead = order[-1, :, 2, 1] - order[-1, :, 1, 1]
ledger.mean("simplicity-bias", second=wait[:, 0], third=wait[:, 1], lead=lead)
third = order[when[:, 0], torch.arange(3), 2, 0]
ledger.mean("rare-plane-still-at-chance", third)

# %% [markdown]
# <a id="09-held-up"></a>
# ## What held up
#
# All experiments are ours, and so are their sizes, step sizes and thresholds; they were set on pilot runs with the seeds 1000 to 1004, and the rules were fixed before the runs that judge, but for the changes that are listed below the table.
# (The cells that record the claims are in the notebook, but not on the site.)

# %%
# NBVAL_CHECK_OUTPUT
ledger.show()

# %% [markdown]
# **Holds in our runs.** The mechanism, from enough samples: after one step, a convex problem or small steps on both layers learn exclusive-or, linear data and parities, and most of a polynomial. What the lemmas count comes out as counted, and closed forms replace sampling for clusters, margins, quadratic targets and uniform parities.
#
# **Holds in our runs, and is loose.** A width of $10^{13}$ for an excess loss of 0.1, where about a thousand neurons do on four clusters, a rate of $n^{-1/3}$ where $n^{-1/2}$ is seen, odds of a good direction that fall with $d$ where those of a fixed cone are constant. Half of the exponent of the width can be removed ({prf:ref}`prop-09-half`).
#
# **Does not hold as printed.** Five rows. $\mathbb E[y\mathbf x]$ is not zero for structured parities, so that the proof for negative thresholds breaks down; with three blocks they carry no single feature where there is no uniform part, and where there is one, random neurons rarely do if blocks are long for the given $p_{\mathbf A}$ ({prf:ref}`prop-09-negative`). The theorem does not need them, since the ground truth can be written with positive thresholds. The loss of the mixtures' ground truth has an exponent that is too good by a factor of two. Most sure neurons of exclusive-or are outside the cone that the thesis computes, because a term of the other clusters is lost; the odds of {prf:ref}`prop-09-odds` replace it. And the separation from kernels for exclusive-or is stated where there is none; it is real in another regime. See the [errata page](../book/errata.md).
#
# **Further slips.** The errata page has each with what was printed, what holds and a check.
#
# - Bounds: the factor $\sqrt d$ of $B_{x1}$ is lost in Theorem 3.18 (B.338), the neurons of the ground truth are counted as $r$ in Theorem 3.22 (B.477), the norm of its coefficients is $\sqrt{6rk(k+1)}$, a factor $(1+\sigma_B)^4$ is missing in the width of Theorem B.42, and a square in (B.104).
# - Assumptions: $\ell(0)=1$ and Lipschitz constant 1 exclude the logistic loss; hinge losses are not smooth (Theorems 3.4, B.56); normal inputs are not bounded; the sign of a threshold 0 is undefined in (3.7), where the ground truths of linear data and of parities have such thresholds; covariances $\sigma_jI$ are $\sigma_j^2I$, and masses are joint.
# - Uniform parities: a lost $\frac12$ and the wrong coefficient off $\mathbf A$ in Lemma B.63; signs and exponents around (B.553) to (B.557), and a binomial in (B.480).
# - Algorithms: $1/t$ for $1/L$ (Theorem 3.4); two different starts and an $\mathbf a^{(1)}$ that is not zero in Algorithm 6; the affine part that Algorithm 7 takes away is not given back.
# - Tails: $\boldsymbol\mu_2$ for $\boldsymbol\mu_3$ (Lemma B.38), a condition $z\ge0$ (Lemma B.74), a factor $x$ (B.594).
#
# **Not what the theorem is about.** Its first step uses the population gradient or $n\propto m^3$ points, and its width is polynomial of a high order. Our runs show that the mechanism works at sizes to which the theorem does not apply, which is encouraging but is not a confirmation of the bounds. Reading out by a solver (parities) and by ridge regression (multi-index) replaces many small steps of the convex stage.
#
# **Open.** Features that need more than one step. At a fixed signal-to-noise ratio and $n\propto d$ the first step alone loses the plane for large $d$ ({eq}`eq-09-align`), and nothing here says what the following steps do about it.
#
# **What was changed.** Three claims were added later, with rules from the same pilot seeds: the length of the explicit read-out, larger tickets, and more thresholds for parities. One choice was changed by the runs that judge: tickets were at first picked almost by direction alone, and with seed 1013 three of eight of them had a kink beyond its cluster and failed; they are now picked by direction and length, as {prf:ref}`lem-09-good` has it. And the share of first gradients in the plane of the clusters was a mean over three samples, which one of nine seeds had 0.14 from its prediction where 0.12 was allowed; it is a mean over twelve now. The tangent kernel of the parities had 2,000 points; it has the 4,000 of the read-outs now, and its errors hardly moved.

# %% [markdown]
# <a id="09-not-run"></a>
# ## Not run here
#
# | What the thesis has or suggests | Why not by default | What runs it |
# |---|---|---|
# | Assumption 3.15 to the letter, $d\ge16\tau\log d$ with $\tau\ge8$ | $d\gtrsim900$, and $p$ of order $d^{-\Theta(\tau)}$: no neuron is ever sure | not offered |
# | Exclusive-or against kernels at $d=128$ and more | a kernel matrix of 4,096 points takes 10 s a run | `mvnb run 09 -p compare_dims='[32,64,128]'` |
# | Three planes until the last is learned | thousands of steps | `mvnb run 09 -p bias_steps=4000` |
# | The good network at $m=10^6$ | memory | `mvnb run 09 -p widths='[6400,102400,1000000]'` |
# | Uniform parity, $d=21$, $k=4$, and $k=6$ | two million points and 128 neurons are 2 GB; $k=6$ needs more than $10^8$ samples | `mvnb run 09 -p uniform_dim=17 -p uniform_sizes='[1000000,4000000]'` for $d=17$ |
# | The $\ell_\infty$ analysis of uniform parities (Theorem B.65) | its rate $k^2\sqrt{d\log d}/(d-k)$ is above 1 for all $d$ below 1,000 at $k=4$ | not offered |
# | Rates of Theorems 3.18, 3.22 and B.42 in $d$ | exponents of $d$ that need the assumptions to the letter | not offered |
#
# `mvnb run 09 --preset paper` runs the rest with more replicas, neurons and dimensions.

# %% [markdown]
# <a id="09-try"></a>
# ## Try it
#
# :::{exercise}
# :label: ex-09-mirror
#
# By hand: the thesis's start {eq}`eq-09-start` has four blocks. Which property is lost with blocks one and three only ($2m$ neurons), and for which data does it not matter?
# :::
#
# :::{solution} ex-09-mirror
# :class: dropdown
#
# The output is still zero, and {eq}`eq-09-first` holds. Lost are the negative thresholds (block two has $-b$), so features $(D,-1)$ cannot be hit. By {eq}`eq-09-identity` blocks one and two have the same $\mathbf w^{(1)}$ if $\mathbb E[y\mathbf x]=0$: there block two offers other kinks, at the same weights. For linear data negative thresholds are the ones that matter; for structured parities ({prf:ref}`lem-09-parity`) and clusters they are not needed.
# :::
#
# :::{exercise}
# :label: ex-09-angle
#
# By hand: derive $p=\frac2\pi\arccos(1-\gamma)$ of {prf:ref}`prop-09-odds` for $q\to0$ and compare with $q=1,\kappa=1.5$ at $\gamma=0.05$, using {py:func}`~mvnb.papers.gradient_features.theory.xor_hit_probability`.
# :::
#
# :::{solution} ex-09-angle
# :class: dropdown
#
# The direction is uniform on the circle; the double cone of $D_1$ are four arcs of $\arccos(1-\gamma)$ each, so $p=4\arccos(1-\gamma)/(2\pi)=0.202$. For $q=1$ and $\kappa=1.5$ it is 0.23: a far threshold makes large differences larger and so helps, but at the price of smaller gradients.
# :::
#
# :::{exercise}
# :label: ex-09-kinks
#
# By hand: why does one constant threshold $\tilde b$ suffice for a ground truth with many different kinks, and what would go wrong with $\sigma_a$ much too small?
# :::
#
# :::{solution} ex-09-kinks
# :class: dropdown
#
# A neuron $\sigma(\langle\mathbf w,\mathbf x\rangle-\tilde b)$ with $\mathbf w=\lambda D$ has its kink at $\tilde b/\lambda$, and $\lambda\propto\lvert a^{(0)}\rvert$ is random. If $\sigma_a$ is much too small, all lengths are below $\tilde b/b^*$ for the nearest kink $b^*$: kinks lie beyond the data, no neuron is active after the step, and gradients vanish. Much too large, and kinks crowd near zero, where they are of little use; {prf:ref}`prop-09-half` is about the middle.
# :::
#
# :::{exercise}
# :label: ex-09-snr
#
# Re-run the chapter at a lower signal-to-noise ratio. Which claims change first, and why?
# :::
#
# :::{solution} ex-09-snr
# :class: dropdown
#
# `mvnb run 09 -p snr=2`. The best possible error rises to 0.145, and the signal of {eq}`eq-09-align` falls by $(2/3)^4=0.2$: at $n=32d$ the plane's share in $d=64$ falls from 0.7 to about 0.4. `network-near-bayes` fails first. The tangent kernel suffers more still, so that the gap widens.
# :::

# %% [markdown]
# <a id="09-further"></a>
# ## Further reading
#
# - {doc}`Chapter 8 <08_feature_emergence>`, by two of the three authors, proves feature learning for one family of data, with two feature steps and a lower bound for fixed features; this chapter's framework came out of it.
# - One-step arguments: Daniely and Malach ([Daniely and Malach, 2020](../book/references.bib#daniely2020parities)) for parities, Barak et al. ([Barak et al., 2022](../book/references.bib#barak2022hidden)) for uniform ones, where one step suffices from $n\propto d^{k}$, and Damian et al. ([Damian et al., 2022](../book/references.bib#damian2022representations)) for polynomials.
# - Exclusive-or at a fixed signal-to-noise ratio, networks against kernels: Refinetti et al. ([Refinetti et al., 2021](../book/references.bib#refinetti2021classifying)).
# - Lottery tickets in practice: Frankle et al. ([Frankle et al., 2020](../book/references.bib#frankle2020linear)) find that tickets of larger networks exist early in training rather than at the start.
# - A learned threshold that does what frozen filters cannot: {doc}`chapter 5 <05_local_signal_adaptivity>`.
