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
# # Larger models keep more noise in context
#
# > *Why Larger Language Models Do In-context Learning Differently?*, Zhenmei Shi, Junyi Wei, Zhuoyan Xu and Yingyu Liang ([Shi et al., 2024](../book/references.bib#shi2024larger)); in full as chapter 5 and appendix D of Shi's thesis ([Shi, 2024](../book/references.bib#shi2024thesis)), which we follow.
#
# Show a language model sixteen labelled sentences with all labels turned round: a large one follows them, a small one keeps to what it knew ([Wei et al., 2023](../book/references.bib#wei2023larger)). The paper explains this with a model of one line, attention without softmax whose matrix has rank $r$. The best one keeps the $r$ strongest directions of its inputs and drops the rest, so that a larger model hears more of the signal and more of the noise. Everything about it can be written down, and that is what we do; then we look at how much of it a real language model shows.
#
# <a id="11-rank-explorer"></a>
# :::{explorer} 11-rank
# :alt: Left, risk over rank as the sum of three parts. The signal that is missed falls, noise of inputs and of labels rise, and the sum is least at rank 4. Right, one stem a direction; the first four lower the risk, the others raise it.
#
# A model of rank $r$ uses the $r$ strongest of twenty directions. Each adds signal, and noise from the inputs and the labels (standard deviation $\sigma$) of the $M$ examples in context; the *risk* is the squared error. *Predict:* how does the best rank grow with $M$? What is it without label noise, and with half of the labels flipped?
# :::
#
# <a id="fig-11-opening"></a>

# %% tags=["remove-input"]
from mvnb import figures

figures.opening()

# %% [markdown]
# Left: mean squared error of the best linear attention of rank $r$ when a share of the labels in its context is flipped; curves are closed forms, dots are simulations. Right: SmolLM2, a language model of 135 million parameters, with sixteen labelled sentences in context, stored from a longer run.
#
# Both are explained [further down](#11-experiments). The paper's figures are about Llama models of 3 to 70 billion parameters, which do not run here; its theory has no experiments, so that every run of it on this page is ours.

# %% tags=["parameters", "hide-input"]
seed = 0  # first seed: replica r is the run with seed + r (integer, 0 or more)
replicas = 4  # independent runs of what is trained (2 or more)
device = "auto"  # "auto", "cpu" or "cuda"; closed forms stay on the CPU
spectrum = [3.0, 2.0, 1.2, 0.6, 0.3, 0.1]  # variances of tokens, falling (above 0)
n_train = 20  # N, examples in a prompt of pretraining (1 or more)
n_context = 8  # M, examples in a prompt of evaluation (1 or more)
noise = 0.5  # sigma, standard deviation of the label noise (0 or more)
check_prompts = 20000  # prompts behind every simulated risk (1000 or more)
sgd_steps = 1000  # steps of training on sampled prompts (100 or more)
sgd_batch = 256  # prompts a step (1 or more)
gamma = 0.2  # lean of a parity's two features towards 1 (between 0 and 1/4)
parity_prompts = 10000  # prompts behind every accuracy of a parity (1000 or more)
text = "movies"  # sentences for linear attention, as in llm_sets; "" skips language
text_contexts = 1000  # contexts of them (100 or more)
text_examples = 256  # examples in each of them (1 or more)
text_dims = 64  # coordinates of a review (8 or more)
language_model = "smollm2-135m-instruct"  # or a folder, a GGUF file; "" skips
llm_sets = ["movies"]  # of "movies", "products", "editorials", "tweets", or tables
llm_examples = 16  # labelled sentences in a context (2 or more, even)
llm_contexts = 3  # contexts a set (2 or more)
llm_questions = 12  # sentences asked about after each of them (2 or more, even)
llm_flips = [0.0, 1.0]  # shares of flipped labels, 0 and 1 among them (0 to 1)
llm_prompts = 8  # prompts whose attention is measured (2 or more)

# %% tags=["hide-input", "check"]
import functools
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch

from mvnb import claims, figures, kept_runs, stats, training
from mvnb.data import SENTIMENT_SETS, load_sentiment
from mvnb.models.language import load_language_model
from mvnb.papers.icl_and_scale import icl
from mvnb.papers.icl_and_scale import parity_attention as parity
from mvnb.papers.icl_and_scale.data import InContextRegression

figures.use_style()
ledger = claims.Ledger("icl_and_scale")
device, seed = training.pick_device(device), training.fold_seed(seed)
print(f"device: {device.type}")
LINE = figures.COLORS["theory"]
SMALL, LARGE, THIRD, PINK = (
    figures.HUES[c] for c in ("blue", "orange", "green", "pink")
)

# %% [markdown]
# Parameters that do not fit together are refused here.

# %% tags=["hide-input", "check"]
d = len(spectrum)
if d < 3 or not all(np.diff(spectrum) < 0):
    raise ValueError(f"spectrum must fall, three or more, got {spectrum}")
if not {0.0, 1.0} <= set(llm_flips):
    raise ValueError(f"llm_flips must include 0.0 and 1.0, got {llm_flips}")
for name in filter(None, [text, *llm_sets]):
    if name not in SENTIMENT_SETS and not Path(name).expanduser().is_file():
        choices = f"of {', '.join(SENTIMENT_SETS)}, or a table's path"
        raise ValueError(f"text and llm_sets must be {choices}, got {name!r}")
if not llm_sets:
    raise ValueError(f"llm_sets must name one or more, got {llm_sets}")
place = Path(language_model).expanduser()
if language_model not in ("", "smollm2-135m-instruct") and not place.exists():
    raise ValueError(f"language_model must be a folder or file, got {language_model!r}")
for name, value in (("llm_questions", llm_questions), ("llm_examples", llm_examples)):
    if value % 2:
        raise ValueError(f"{name} must be even, got {value}")


stream = functools.partial(training.stream, seed)  # a generator for each purpose

# %% [markdown]
# <a id="11-question"></a>
# ## The question: is a larger model a better listener?
#
# A model that learns *in context* gets examples with labels and a question, and answers without any change of its weights. One would think that a larger model does this better, with good examples and bad ones. Wei et al. ([Wei et al., 2023](../book/references.bib#wei2023larger)) found otherwise. With more and more labels flipped, the largest models end below chance, since they do what the examples say, and the small ones hardly react. Shi et al. ([Shi et al., 2023](../book/references.bib#shi2023distracted)) found that irrelevant sentences distract large models. *What has size to do with it?* The chapters before asked how features come about; this one asks which of them a model of limited size keeps.
#
# The smallest case has two coordinates. Inputs have variance 1 along the first and $\frac14$ along the second, and the task is $y=x_1$: the second is of no use. From $M$ examples the model forms $\mathbf h=\frac1M\sum_iy_i\mathbf x_i$ and predicts with the weights $\hat{\mathbf w}=U\mathbf h$. A large model has a $U$ of rank two, a small one of rank one.
#
# **Predict before you look.** Where do the weights $\hat{\mathbf w}$ of the two models lie for many contexts of eight examples, and where do they go when all labels are flipped?

# %% tags=["hide-input"]
tiny = InContextRegression((1.0, 0.25), 8)
fig, axes = plt.subplots(1, 2, figsize=(7.5, 3.0), sharex=True, sharey=True)
truth = torch.tensor([1.0, 0.0])
for ax, rank in zip(axes, (1, 2)):
    v = torch.tensor(icl.pass_through(tiny.spectrum, 100, rank)).float()
    for flip, color, marker in ((0.0, SMALL, "o"), (1.0, LARGE, "s")):
        x, y, *_ = tiny.sample(300, stream(1), truth, flip=flip)
        guess = (y[..., None] * x).mean(1) * v / torch.tensor(tiny.spectrum)
        ax.plot(*guess.T, marker, color=color, ms=3, alpha=0.5, mew=0)
    ax.plot(*truth, "*", color=LINE, ms=14)
    ax.set(title=f"rank {rank}", xlabel="weight on $x_1$")
    ax.set(xlim=(-2.6, 2.6), ylim=(-3, 3))
axes[0].set_ylabel("weight on $x_2$")
axes[0].annotate("true labels", (0.6, 1.2), color=SMALL)
axes[0].annotate("flipped labels", (-2.4, 1.2), color=LARGE)
figures.show(
    fig,
    title="The larger model hears the second direction, where there is only noise",
    alt="Two scatter plots of estimated weights. With rank one, all points lie on the "
    "horizontal axis, those of true labels around 1, those of flipped labels around "
    "-1. With rank two, both clouds spread widely in the vertical direction.",
)

# %% [markdown]
# The star is the truth, and every point is one context. The small model's weights lie on a line: it cannot use the second direction, for better or worse. The large one's are spread along it, although nothing is there, since eight examples do not suffice to see that. And *both* go to the other side when the labels are flipped. So size decides how much noise comes through, but this small model, too, believes what it is told. Keep that in mind for the language models.
#
# <a id="11-world"></a>
# ## The worlds
#
# **Regression.** A prompt has examples $\mathbf x_i\sim\mathcal N(0,\Lambda)$ with labels and a query $\mathbf x_q$. In *pretraining* there are $N$ of them, each prompt has its own task $\mathbf w_\tau\sim\mathcal N(0,I)$, and $y_i=\langle\mathbf w_\tau,\mathbf x_i\rangle$. In *evaluation* there are $M$, the task $\mathbf w$ is fixed, and
#
# $$
# y_i=\zeta_i\,(\langle\mathbf w,\mathbf x_i\rangle+\epsilon_i),\quad\epsilon_i\sim\mathcal N(0,\sigma^2),\quad\zeta_i=-1\text{ with probability }p,\text{ else }1 ;
# $$ (eq-11-eval)
#
# the goal is $\langle\mathbf w,\mathbf x_q\rangle$. The thesis has $p=0$; the flips are ours, after its experiments. The eigenvalues $\lambda_1\ge\dots\ge\lambda_d$ of $\Lambda$ say how loudly each direction is spoken: large ones stand for words that matter, small ones for filler. No result depends on the axes, so that ours are the coordinates ({py:obj}`~mvnb.papers.icl_and_scale.data.InContextRegression`).
#
# **Parities.** Hidden features $\phi\in\{\pm1\}^d$ are seen through a dictionary, $\mathbf x=G\phi$, $G$ orthonormal. A task is a pair $(i,j)$ and its label is $y=\phi_i\phi_j$. The pair leans towards 1: for a $\gamma$ with $0<\gamma<\frac14$,
#
# $$
# \Pr[(\phi_i,\phi_j)=(u,v)]=\begin{cases}\tfrac14+\gamma&u=v=1,\\\tfrac14&u\ne v,\\\tfrac14-\gamma&u=v=-1,\end{cases}
# $$ (eq-11-pair)
#
# other features are fair coins. The first $k=2^{\nu_1}$ of the $d=2^{\nu_2}$ features are *important*: tasks are pairs of important features with probability $1-p_{\mathcal T}$ and any other pairs with the small probability $p_{\mathcal T}$.

# %% tags=["hide-input", "picture"]
world = InContextRegression(tuple(spectrum), n_context)
shown = world.sample(1, stream(2), noise=noise)
fig, axes = plt.subplots(1, 2, figsize=(7.5, 2.9), width_ratios=(1.2, 1))
table = torch.cat([shown.x[0], shown.y[0][:, None]], 1).T
last = torch.cat([shown.query, torch.tensor([[torch.nan]])], 1).T
axes[0].imshow(torch.cat([table, last], 1), cmap="PuOr", vmin=-4, vmax=4, aspect="auto")
axes[0].axvline(n_context - 0.5, color=LINE, lw=1)
axes[0].axhline(d - 0.5, color=LINE, lw=1)
axes[0].set_yticks([0, d - 1, d], ["$x_1$", f"$x_{d}$", "$y$"])
axes[0].set_xticks([0, n_context], ["1", "query"])
axes[0].set(title="a regression prompt", xlabel="example")
bits = 2 * torch.randint(2, (8, 17), generator=stream(3)) - 1
bits[:, 0] = bits[:, 4] * bits[:, 10]
axes[1].imshow(bits.T, cmap="PuOr", vmin=-1.6, vmax=1.6, aspect="auto")
axes[1].set_yticks([0, 4, 10], ["label", "$\\phi_i$", "$\\phi_j$"])
axes[1].set(title="a parity's features", xlabel="example")
axes[1].set_xticks([0, 7], ["1", "8"])
axes[1].axhline(0.5, color=LINE, lw=1)
for ax in axes:
    ax.grid(False)
figures.show(
    fig,
    title="Loud and quiet directions; a label that no single feature tells",
    alt="Left: a prompt as a matrix, one column an example. Rows become paler from the "
    "first coordinate to the last; the bottom row holds the labels, and its last entry "
    "is empty. Right: sixteen rows of two-coloured bits below their label row.",
)

# %% [markdown]
# Orange is negative, purple positive. On the left a prompt as the model gets it, a column an example; the rows are paler from top to bottom, and the label of the query is missing. On the right eight examples of a parity of sixteen features (drawn without the lean): the label in the top row is the product of the rows $\phi_i$ and $\phi_j$, and the other rows have nothing to do with it.
#
# <a id="11-model"></a>
# ## The models
#
# Linear self-attention maps a prompt, written as a matrix $E$ with the query in its last column and 0 for its label, to
#
# $$
# f(E)=E+W^{PV}E\,\frac{E^\top W^{KQ}E}{\rho},
# $$ (eq-11-lsa)
#
# $\rho$ the number of examples, and the prediction is the entry at the bottom right. Only the last row of $W^{PV}$ and the first $d$ columns of $W^{KQ}$ reach it; the package's {py:func}`~mvnb.papers.icl_and_scale.icl.self_attention` keeps these alone. If moreover $W^{PV}$ has no weight but its last, $u$, and $W^{KQ}$ none but its upper left block $U$ (which gradient descent keeps so if it starts so, [Zhang et al. (2024)](../book/references.bib#zhang2024trained)), then
#
# $$
# \hat y_q=u\,\mathbf h^\top U\mathbf x_q,\qquad\mathbf h=\tfrac1\rho\sum_iy_i\mathbf x_i .
# $$ (eq-11-reduced)
#
# Only $uU$ matters, so $u=1$ from now on. $U=(W^K)^\top W^Q$ with $W^K,W^Q\in\mathbb R^{r\times d}$ has rank at most $r$, and that is the *size* of this model. The training objective is $\frac12\mathbb E(\hat y_q-\langle\mathbf w_\tau,\mathbf x_q\rangle)^2$. For parities there are $m$ heads,
#
# $$
# g=\sum_{i=1}^ma_i\,\sigma\bigl(\mathbf h^\top W^{(i)}\mathbf x_q\bigr),\qquad\lvert a_i\rvert\le1,
# $$ (eq-11-heads)
#
# $\sigma$ the ReLU, trained with the hinge loss and a vanishing weight decay, and $m$ is the size. As $W^{(i)}=GV^{(i)}G^\top$ we set $G=I$; for a diagonal $V=\mathrm{diag}(\mathbf v)$ a head sees $\langle\mathbf v,\boldsymbol\zeta\rangle$ with $\boldsymbol\zeta=\mathbf z\odot\phi_q$ and $\mathbf z=\frac1M\sum_ly_l\phi_l$.


# %%
def low_rank(params, h, query, target):
    """Half the mean squared error of U = a b^T, and its gradient, for fit."""
    left, right = torch.bmm(h, params["a"]), torch.bmm(query, params["b"])  # (R, n, r)
    error = (left * right).sum(-1) - target
    push = (error / error.shape[1])[..., None]
    d_a, d_b = torch.bmm(h.mT, push * right), torch.bmm(query.mT, push * left)
    return error.square().mean(1) / 2, {"a": d_a, "b": d_b}


# %%
# NBVAL_CHECK_OUTPUT
g = stream(4)
covariance = torch.diag(torch.tensor(spectrum, dtype=torch.float64))
U = torch.randn(d, d, generator=g, dtype=torch.float64) / 3
prompts = world.sample(50, g, noise=noise, dtype=torch.float64)
v = torch.eye(d + 1, dtype=torch.float64)[-1]
W = torch.nn.functional.pad(U, (0, 0, 0, 1))
h = (prompts.y[..., None] * prompts.x).mean(1)
reduced = ((h @ U) * prompts.query).sum(-1)
full = icl.self_attention(*prompts[:3], v, W)
apart = (full - reduced).abs().max().item()
print("full attention is the reduced form:", apart < 1e-12)
params = {k: torch.randn(2, d, 2, generator=g).double() for k in "ab"}
batch = [one.expand(2, *one.shape) for one in (h, prompts.query, prompts.target)]
leaves = {k: one.clone().requires_grad_() for k, one in params.items()}
low_rank(leaves, *batch)[0].sum().backward()
by_hand = low_rank(params, *batch)[1]
worst = max((by_hand[k] - leaves[k].grad).abs().max().item() for k in "ab")
print("gradient in the factors is autograd's:", worst < 1e-12)

# %% [markdown]
# <a id="11-derivation"></a>
# ## The derivation, I: the best model of rank r
#
# ::::{prf:lemma} The population loss (Lemma 5.1, after Zhang et al.)
# :label: lem-11-loss
#
# With $\Gamma=(1+\frac1N)\Lambda+\frac1N\mathrm{tr}(\Lambda)I$ the objective of pretraining is
#
# $$
# \mathcal L(U)=\tfrac12\mathrm{tr}\bigl[\Gamma\Lambda U\Lambda U^\top\bigr]-\mathrm{tr}\bigl[\Lambda^2U^\top\bigr]+\tfrac12\mathrm{tr}\Lambda .
# $$ (eq-11-loss)
# ::::
#
# :::{prf:proof}
# $\mathbf h=\hat\Lambda\mathbf w$ with $\hat\Lambda=\frac1N\sum\mathbf x_i\mathbf x_i^\top$, so the error is $\mathbf w^\top(\hat\Lambda U-I)\mathbf x_q$. Averaged over $\mathbf w$ and $\mathbf x_q$ its square is $\mathrm{tr}\,\mathbb E[(\hat\Lambda U-I)\Lambda(\hat\Lambda U-I)^\top]$. Insert $\mathbb E\hat\Lambda=\Lambda$ and, for symmetric $B$, $\mathbb E[\hat\Lambda B\hat\Lambda]=(1+\frac1N)\Lambda B\Lambda+\frac1N\mathrm{tr}(B\Lambda)\Lambda$ (Isserlis), with $B=U\Lambda U^\top$.
# :::
#
# ::::{prf:theorem} The best model of rank r is the best model, truncated (Theorem 5.4.1)
# :label: thm-11-rank
#
# Let $\Lambda=Q\,\mathrm{diag}(\lambda_i)\,Q^\top$ be invertible. Among matrices of rank at most $r$, $\mathcal L$ is least at
#
# $$
# U^*=Q\,\mathrm{diag}(v_1,\dots,v_r,0,\dots,0)\,Q^\top,\qquad v_i=\frac N{(N+1)\lambda_i+\mathrm{tr}\Lambda},
# $$ (eq-11-optimum)
#
# where it is $\frac12\sum_i\lambda_i-\frac12\sum_{i\le r}\lambda_i\tau_i$ with $\tau_i=\lambda_iv_i\in(0,1)$. If $\lambda_r>\lambda_{r+1}$ there is no other minimiser.
# ::::
#
# :::{prf:proof}
# In suitable coordinates the loss is the squared distance from one fixed matrix, and the nearest matrix of rank $r$ is a truncation of it. Complete the square: $\mathcal L(U)=\frac12\lVert\Gamma^{1/2}(\Lambda^{1/2}U\Lambda^{1/2}-\Lambda\Gamma^{-1})\rVert_F^2+\text{const}$, where all matrices but $U$ commute. The map $U\mapsto Z=\Gamma^{1/2}\Lambda^{1/2}U\Lambda^{1/2}$ is a bijection that keeps the rank, so we look for the matrix $Z$ of rank at most $r$ that is nearest to $\Lambda\Gamma^{-1/2}$. That is the theorem of Eckart and Young: keep the $r$ largest singular values. They are $\lambda_i/\sqrt{\lambda_i'}$ with $\lambda_i'=(1+\frac1N)\lambda_i+\frac1N\mathrm{tr}\Lambda$, increasing in $\lambda_i$, and belong to the eigenvectors of $\Lambda$. Going back, $v_i=1/\lambda_i'$. Each direction left out costs $\frac12\lambda_i^2/\lambda_i'=\frac12\lambda_i\tau_i$.
# :::
#
# The thesis argues with diagonal matrices from the start; the weighted Eckart–Young argument needs no such restriction. The matrix does not have to be found by hand: for fixed $B$ the best $A$ in $U=AB^\top$ is a linear least-squares problem, and the two alternate. The cell does this from random starts, for all ranks, and then trains on sampled prompts.


# %%
def alternate(rank, g, rounds=150):
    """U = A B^T of this rank by alternating minimisation of the population loss."""
    loaded = torch.diag(torch.tensor(icl.loaded_spectrum(spectrum, n_train)))
    b = torch.randn(d, rank, generator=g, dtype=torch.float64)
    for _ in range(rounds):
        a = loaded.inverse() @ covariance @ b @ (b.T @ covariance @ b).inverse()
        b = covariance @ a @ (a.T @ loaded @ covariance @ a).inverse()
    return a @ b.T


# %%
ranks = np.arange(d + 1)
best_loss = icl.pretrained_loss(spectrum, n_train, ranks)
each = [alternate(r, g) for g in training.generators(seed, replicas) for r in ranks[1:]]
found = torch.stack(each).unflatten(0, (replicas, d))  # (replica, rank, d, d)
optimum = [icl.optimal_weight(covariance, n_train, int(r)) for r in ranks[1:]]
optimum = torch.stack(optimum)
losses = icl.population_loss(found, covariance, n_train)
loss_gap = (losses - torch.tensor(best_loss[1:])).abs().amax(1)
weight_gap = ((found - optimum).norm(dim=(2, 3)) / optimum.norm(dim=(1, 2))).amax(1)

# %% [markdown]
# Training by gradient steps needs no covariance: Adam on fresh prompts, with all ranks and replicas in one program. Smaller ranks are the larger model with columns of $A$ and $B$ that start at zero, since there they stay: the gradient of each is the other times something.

# %%
deep = InContextRegression((2.0, 1.2, 0.8, 0.5, 0.3, 0.2, 0.14, 0.1), 40)
sgd_ranks = [r for r in (1, 2, 4, 8) for _ in range(replicas)]
streams = training.generators(seed, len(sgd_ranks))


def start_factor(rank, g):
    small = 0.1 * torch.randn(8, rank, generator=g)
    return torch.nn.functional.pad(small, (0, 8 - rank))


factors = {
    k: torch.stack([start_factor(r, g) for r, g in zip(sgd_ranks, streams)])
    for k in "ab"
}
trained = training.fit(
    low_rank,
    training.to_device(factors, device),
    training.Fresh(deep.correlations, sgd_batch, streams, device=device),
    steps=sgd_steps,
    optimizer=training.Adam(lambda step: 0.03 * (1 - step / sgd_steps)),
)
trained_u = (trained.params["a"] @ trained.params["b"].mT).double().cpu()

# %%
deep_cov = torch.diag(torch.tensor(deep.spectrum, dtype=torch.float64))
exact = icl.pretrained_loss(deep.spectrum, 40, np.array(sgd_ranks))
sgd_excess = np.abs(icl.population_loss(trained_u, deep_cov, 40).numpy() / exact - 1)
sgd_excess = sgd_excess.reshape(4, replicas)
left = torch.linalg.svd(trained_u)[0]
sgd_overlap = [one[:r, :r].square().sum() / r for one, r in zip(left, sgd_ranks)]
sgd_overlap = torch.stack(sgd_overlap).view(4, replicas).numpy()

# %% tags=["hide-input"]
fig, axes = plt.subplots(1, 2, figsize=(7.5, 3.0), width_ratios=(1, 1.3))
for r, color, group in zip((1, 2, 4, 8), figures.shades(4), trained_u.chunk(4)):
    tau = icl.pass_through(deep.spectrum, 40, r)
    axes[1].plot(np.arange(1, 9), tau, color=LINE, lw=1)
    passed = group.diagonal(dim1=1, dim2=2) * deep_cov.diagonal()
    axes[1].plot(np.arange(1, 9), passed.T, "o", color=color, ms=6)
    axes[1].annotate(f"r = {r}", (r, tau[r - 1]), (4, 6), textcoords="offset points")
image = trained_u[2 * replicas].numpy()
axes[0].imshow(image, cmap="PuOr", vmin=-1, vmax=1)
axes[0].set(title="a trained $U$ of rank 4", xticks=[], yticks=[])
axes[0].grid(False)
axes[1].set(xlabel="direction $i$", ylabel="$\\tau_i=\\lambda_iU_{ii}$")
axes[1].set(ylim=(-0.08, 1.08), title="what passes")
figures.show(
    fig,
    title="Trained on prompts, a model of rank r keeps the r loudest directions",
    alt="Left: a trained matrix of size eight, nearly diagonal, with four entries that "
    "grow along the diagonal and then nothing. Right: the share that passes for each "
    "direction; dots of trained models of ranks 1, 2, 4 and 8 lie on four lines that "
    "share a falling curve and drop to zero after their rank.",
)

# %% [markdown]
# On the left one of the trained matrices: it is nearly diagonal, with four entries. On the right the four lines are {eq}`eq-11-optimum`; they lie on top of each other up to the rank, and each is zero beyond it. So the small model is part of the large one. That is the mechanism of the paper, and the rest of this part is arithmetic.

# %% tags=["remove-cell"]
ledger.mean("truncation-is-optimal", weights=weight_gap, loss=loss_gap)
ledger.mean("training-finds-it", excess=sgd_excess.max(0), overlap=sgd_overlap.min(0))

# %% [markdown]
# ## The derivation, II: what the model does with a context
#
# ::::{prf:theorem} Evaluation risk (Theorem 5.4.2; flipped labels ours)
# :label: thm-11-risk
#
# Let $w_i$ be the coordinates of $\mathbf w$ along the eigenvectors, $\lVert\mathbf w\rVert_\Lambda^2=\sum_iw_i^2\lambda_i$, $\tau_i$ as above and 0 beyond $r$, and $a=1-2p$. The mean squared error of the model {eq}`eq-11-optimum` on prompts {eq}`eq-11-eval` is
#
# $$
# \mathcal R=\sum_{i=1}^dw_i^2\lambda_i(1-a\tau_i)^2+\frac1M\sum_{i=1}^r\tau_i^2\bigl[(2-a^2)\,w_i^2\lambda_i+\lVert\mathbf w\rVert_\Lambda^2+\sigma^2\bigr].
# $$ (eq-11-risk)
# ::::
#
# :::{prf:proof}
# The risk is squared bias plus variance of the sample mean $\mathbf h$; flips multiply its expectation by $a$ and leave the second moments of $y\mathbf x$ as they are. $\mathbf h$ is a mean of $M$ independent copies of $y\mathbf x$, with $\mathbb E[y\mathbf x]=a\Lambda\mathbf w$ and, since $y^2$ does not know about flips, $\mathbb E[y^2\mathbf x\mathbf x^\top]=(\lVert\mathbf w\rVert_\Lambda^2+\sigma^2)\Lambda+2\Lambda\mathbf w\mathbf w^\top\Lambda$ (Isserlis). The error $\mathbf h^\top U\mathbf x_q-\mathbf w^\top\mathbf x_q$ has the squared bias $\lVert aU\Lambda\mathbf w-\mathbf w\rVert_\Lambda^2$, the first sum, and the variance $\frac1M\mathrm{tr}\bigl[U\Lambda U\bigl((\lVert\mathbf w\rVert_\Lambda^2+\sigma^2)\Lambda+(2-a^2)\Lambda\mathbf w\mathbf w^\top\Lambda\bigr)\bigr]$, the second.
# :::
#
# At $p=0$ this is the thesis's formula. Four readings of it:
#
# - *What a direction is worth (ours).* Adding direction $i$ changes the risk by
#
#   $$
#   \Delta_i=\frac{\tau_i^2}M\bigl[(2-a^2)w_i^2\lambda_i+\lVert\mathbf w\rVert_\Lambda^2+\sigma^2\bigr]-a\tau_i(2-a\tau_i)\,w_i^2\lambda_i .
#   $$ (eq-11-gain)
#
#   For $\tau_i\to1$ and $p=0$ it helps exactly if $(M-1)\,w_i^2\lambda_i>\lVert\mathbf w\rVert_\Lambda^2+\sigma^2$: *the signal of one direction must beat the power of all labels, divided by the number of examples.*
# - *If all signal is covered* ($w_i=0$ for $i>r$) and $r'\ge r$, then $\mathcal R_{r'}-\mathcal R_r=\frac1M(\lVert\mathbf w\rVert_\Lambda^2+\sigma^2)\sum_{i=r+1}^{r'}\tau_i^2\approx\frac{r'-r}M(\lVert\mathbf w\rVert_\Lambda^2+\sigma^2)$. This is Theorem 5.4.3: *input noise* and *label noise*, both in proportion to the number of directions.
# - *Flips (ours).* Between no flips and all, the variance is the same, and $\mathcal R(1)-\mathcal R(0)=4\sum_{i\le r}w_i^2\lambda_i\tau_i$: each covered direction adds its own signal to what is lost. For $p\ge\frac12$ no direction helps, however long the context; for $p<\frac12$ every one with some signal does, for large $M$.
# - *Attention (ours).* $\mathbb E(\mathbf x_i^\top U\mathbf x_q)^2=\sum_j\tau_j^2$, so the share of attention on the first $k$ directions is $\sum_{j\le\min(k,r)}\tau_j^2/\sum_{j\le r}\tau_j^2$: 1 for $r\le k$, about $k/r$ beyond.


# %%
def simulate(world, n_train, ranks, offset, weights=None, **prompt):
    """Risks and standard errors (rank,) of the best models on sampled prompts."""
    x, y, query, target = world.sample(check_prompts, stream(offset), weights, **prompt)
    h = torch.einsum("nm,nmd->nd", y, x) / x.shape[1]
    v = icl.pass_through(world.spectrum, n_train, ranks) / np.array(world.spectrum)
    v = torch.tensor(v).float()
    error = ((h * query) @ v.T - target[:, None]).square().double()
    return error.mean(0).numpy(), (error.std(0) / len(error) ** 0.5).numpy()


# %% [markdown]
# <a id="11-experiments"></a>
# ## Regression: the trade-off
#
# First the claim where it is cleanest: 20 directions, of which the first four are loud and carry all the signal. *Prediction:* the risk falls until rank 4 and then climbs, by the same step for each rank, and the steps grow with $\sigma^2$. Beside it, a task whose signal is spread over all directions and decays. *Prediction:* a curve with a minimum at the rank where {eq}`eq-11-gain` changes its sign, further left for more noise and for shorter contexts.

# %%
plain = InContextRegression((1.3, 1.2, 1.1, 1.0, *np.linspace(0.12, 0.08, 16)), 16)
covered = torch.tensor([1.0] * 4 + [0.0] * 16)
steep, sigmas, long = np.arange(21), (0.0, 1.0, 2.0), 100_000
climb = {s: icl.risk(plain.spectrum, covered, long, steep, 16, s) for s in sigmas}
some = np.array([1, 4, 8, 14, 20])
climb_seen = {s: simulate(plain, long, some, 5, covered, noise=s) for s in sigmas}
scores = [abs(m - climb[s][some]) / e for s, (m, e) in climb_seen.items()]
slope_seen = (climb_seen[2.0][0] - climb_seen[0.0][0]) / 4
slope = (icl.pass_through(plain.spectrum, long, some) ** 2).sum(-1) / 16
# the theorem's difference against two evaluations of the formula
passed = icl.pass_through(plain.spectrum, 100, 20) ** 2 / 16
risks_100 = icl.risk(plain.spectrum, covered, 100, steep, 16, 0.5)
gap_formula = (sum(plain.spectrum[:4]) + 0.5**2) * passed
gap_error = np.abs(np.diff(risks_100)[4:] - gap_formula[4:]).max()

# %%
decaying = np.exp(-np.arange(20) / 5)
flat = np.linspace(1.0, 0.8, 20)  # nearly equal variances: the signal alone decides
settings = [(16, 0.0), (16, 2.0), (64, 0.0), (64, 2.0)]
curves = {k: icl.risk(flat, decaying, long, steep, *k) for k in settings}
gains = {k: icl.direction_gain(flat, decaying, long, *k) for k in settings}
best_rank = {k: int(curve.argmin()) for k, curve in curves.items()}
sign_change = {k: int((gain < 0).sum()) for k, gain in gains.items()}

# %% tags=["hide-input"]
fig, axes = plt.subplots(1, 2, figsize=(7.5, 3.2))
for s, color in zip(sigmas, figures.shades(len(sigmas))):
    axes[0].plot(steep, climb[s], color=color)
    axes[0].errorbar(some, climb_seen[s][0], 2 * climb_seen[s][1], fmt="o", color=color)
    axes[0].annotate(f"$\\sigma={s:g}$", (20.5, climb[s][20] - 0.2), color=color)
axes[0].set(xlabel="rank", ylabel="risk", title="signal in the first four")
axes[0].set(xlim=(0, 24.5))
for (m, s), color in zip(settings, (SMALL, SMALL, LARGE, LARGE)):
    axes[1].plot(steep, curves[m, s], color=color, ls="--" if s else "-")
    low = best_rank[m, s]
    axes[1].plot(low, curves[m, s][low], "o", color=color)
    axes[1].axvline(sign_change[m, s], color=color, lw=0.6, ls=":")
axes[1].annotate("$M=16$", (14, curves[16, 0.0][14] - 0.75), color=SMALL)
axes[1].annotate("$M=64$", (10.5, 0.08), color=LARGE)
axes[1].set(xlabel="rank", title="signal decays (dashed: $\\sigma=2$)", ylim=(0, 7.5))
figures.show(
    fig,
    title="Rank buys signal and pays in noise",
    alt="Left: risk over rank for three noise levels. All fall until rank 4 and "
    "then rise in straight lines, the steeper the noisier; dots with error bars lie on "
    "them. Right: four curves with a minimum each, marked by a dot on a dotted line; "
    "minima are further left for shorter contexts and more noise.",
)

# %% tags=["remove-cell"]
ledger.exact("risk-formula", int((np.array(scores) > 4.5).sum()))
deviation = np.abs(slope * 16 / some - 1).max()
off = int((np.abs(slope_seen / slope - 1) > 0.25).sum())
ledger.exact("noise-in-proportion-to-rank", deviation=deviation, off=off)
rises = min(np.diff(climb[s][4:]).min() for s in sigmas)
ledger.exact("larger-is-worse-once-covered", error=gap_error, step=rises)
elsewhere = sum(best_rank[k] != sign_change[k] for k in settings)
less = min(best_rank[m, 0.0] - best_rank[m, 2.0] for m in (16, 64))
more = min(best_rank[64, s] - best_rank[16, s] for s in (0.0, 2.0))
ledger.exact("best-rank-has-a-rule", elsewhere=elsewhere, noise=less, longer=more)

# %% [markdown]
# The left panel is the paper's explanation in one picture: everything beyond rank 4 is noise that the larger model lets through. In the right one dots are the minima, and dotted lines mark where {eq}`eq-11-gain` changes its sign: they agree, as predicted. It shows that there is no law that small is beautiful: it is a matter of what the directions carry.
#
# The [explorer at the top](#11-rank-explorer) shows the world of the right panel, part by part. The best rank is the number of stems that point down. Without label noise there is still one, because inputs are noise to each other. With 32 times as many examples three times as many directions are worth hearing, not 32 times; with half of the labels flipped none is, however long the context.
#
# ### Flipped labels, and where attention goes
#
# Now with flips, for the variances of the parameters and a task drawn at random for every prompt; then $w_i^2$ is replaced by 1 in {eq}`eq-11-risk` and $\lVert\mathbf w\rVert^2_\Lambda$ by $\mathrm{tr}\Lambda$. *Prediction:* without flips the best rank is nearly full; with all labels flipped the order is reversed; rank 0 does not notice anything, and no rank is of use beyond one half.

# %%
shares = np.linspace(0, 1, 51)
setting = (spectrum, np.ones(d), n_train, ranks[:, None], n_context, noise)
flip_risk = icl.risk(*setting, shares[None])  # (rank, share)
flip_at = (0.0, 0.3, 0.7, 1.0)
flip_seen = [
    simulate(world, n_train, ranks, 20 + i, noise=noise, flip=p)
    for i, p in enumerate(flip_at)
]
flip_exact = icl.risk(*setting, np.array(flip_at)).T
flip_scores = [abs(m - f) / e for (m, e), f in zip(flip_seen, flip_exact)]
drop = flip_risk[:, -1] - flip_risk[:, 0]
tau_all = icl.pass_through(spectrum, n_train, ranks)
drop_error = np.abs(drop - 4 * (np.array(spectrum) * tau_all).sum(-1)).max()
best_at = ranks[flip_risk.argmin(0)]

# %%
x, _, query, _ = world.sample(check_prompts, stream(30))
v = torch.tensor(tau_all).float() / torch.tensor(spectrum)
parts = torch.einsum("nd,rd->nrd", x[:, 0] * query, v)  # of x^T U x_q, by direction
relevant = parts[:, 1:, :2].sum(-1).square().mean(0)
share_seen = (relevant / parts[:, 1:].sum(-1).square().mean(0)).numpy()
share_exact = icl.attention_share(tau_all[1:], 2)
share_long = icl.attention_share(icl.pass_through(spectrum, 10**6, ranks[1:]), 2)

# %% tags=["hide-input"]
fig, axes = plt.subplots(1, 2, figsize=(7.5, 2.9))
axes[0].step(100 * shares, best_at, where="mid", color=LINE)
axes[0].set(xlabel="labels flipped (%)", ylabel="rank of least risk", xlim=(0, 100))
axes[1].plot(ranks[1:], share_exact, color=LINE)
axes[1].plot(ranks[1:], share_seen, "o", color=SMALL, ms=6)
axes[1].set(xlabel="rank", ylabel="share", ylim=(0, 1.05))
axes[1].set_title("attention on the first two directions")
figures.show(
    fig,
    title="A few flips favour smaller models; attention spreads with size",
    alt="Left: the best rank falls in steps from nearly full without flips to zero "
    "before half of the labels are flipped. Right: the share of attention on two "
    "directions is one up to rank two, then falls towards one half.",
)


def draw_flips(ax):
    """Risk over the share of flipped labels, a curve a rank: half of the opening."""
    tones = figures.shades(d + 1)
    for r, color in zip(ranks, tones):
        ax.plot(100 * shares, flip_risk[r], color=color, lw=1.8 if r in (0, d) else 1.1)
        for p, (m, e) in zip(flip_at, flip_seen):
            ax.errorbar(100 * p, m[r], 2 * e[r], fmt="o", color=color, ms=3.5)
    ax.annotate("rank 0", (72, flip_risk[0, 0] - 2.2), color=tones[0])
    ax.annotate(f"rank {d}", (66, flip_risk[d, 40]), color=tones[d], ha="right")
    ax.set(xlabel="labels flipped (%)", ylabel="mean squared error", ylim=(0, None))


# %% tags=["remove-cell"]
gap = flip_risk[min(4, d)] - flip_risk[2]
off = int((np.array(flip_scores) > 4.5).sum())
parts = {"without": gap[0], "flipped": gap[-1], "rise": np.diff(drop).min()}
ledger.exact("flips-hurt-larger-models-more", **parts, error=drop_error, off=off)
ledger.exact("small-models-stay-flat", flip_risk[1, -1] / flip_risk[0, -1])
small, large = share_exact[:2].min(), abs(share_long[-1] - 2 / d)
off = int((abs(share_seen - share_exact) > 0.03).sum())
ledger.exact("attention-spreads-with-size", small=small, large=large, off=off)

# %% [markdown]
# The curves of the risk are the left panel of the {ref}`opening figure <fig-11-opening>`; they cross well before half of the labels are flipped. The rank of least risk, on the left here, is read off {eq}`eq-11-risk`: with 30 % of the labels flipped, a model of rank two is the best, and soon after that it is better not to listen at all, since what is left of the signal does not pay for the noise of eight examples. On the right the share of attention on the two loudest directions: it is one for small models and spreads over the rest with size, as the paper's Figure 5.3 has it for two Llamas.
#
# One thing does not fit. "Small models remain flat" is the paper's reading of its language models (its smallest loses 16 points, see [below](#11-language)), and here only rank 0 is flat. With all labels flipped rank 1 has twice the error of a model that always answers 0. The reason is plain in {eq}`eq-11-reduced`: the prediction is linear in the labels. This model knows how to learn from a context and knows nothing else, so there is nothing that could resist; it explains that sensitivity *grows* with size, not that it starts from nought.

# %% [markdown]
# ### A model that knows something (ours)
#
# Give it something to fall back on. Let pretraining tasks have a common part, $\mathbf w_\tau\sim\mathcal N(\boldsymbol\mu,I)$, as most texts agree on what is good and what is bad, and give the model a path that does not look at the context:
#
# $$
# \hat y_q=\mathbf h^\top U\mathbf x_q+\mathbf c^\top\mathbf x_q .
# $$ (eq-11-prior)
#
# ::::{prf:proposition} What a model cannot hear it keeps (ours)
# :label: prop-11-prior
#
# (a) For every $U$ the best path is $\mathbf c=(I-U^\top\Lambda)\boldsymbol\mu$. (b) For $N\to\infty$ the best $U$ of rank $r$ tends to that of {prf:ref}`thm-11-rank`, if $\lambda_r>\lambda_{r+1}$. (c) Then, for the task $\mathbf w=\boldsymbol\mu$ with a share $p$ of the labels flipped, the mean of the weights that the model predicts with is $(1-2p)\mu_i$ for $i\le r$ and $\mu_i$ for $i>r$. With all labels flipped its mean prediction is positively correlated with the truth if and only if
#
# $$
# \sum_{i\le r}\mu_i^2\lambda_i<\sum_{i>r}\mu_i^2\lambda_i .
# $$ (eq-11-half)
# ::::
#
# :::{prf:proof}
# The path can only cancel the mean of the error; what remains is the error of a model without prior knowledge, and a term that vanishes for long prompts. (a) The error is $\mathbf x_q^\top[(U^\top\hat\Lambda-I)\mathbf w+\mathbf c]$. Given $U$ the best $\mathbf c$ removes the mean of the bracket, $(U^\top\Lambda-I)\boldsymbol\mu$. (b) What is left is $(U^\top\hat\Lambda-I)(\mathbf w-\boldsymbol\mu)+U^\top(\hat\Lambda-\Lambda)\boldsymbol\mu$, two uncorrelated parts: the first gives {eq}`eq-11-loss`, the second is of order $\lVert U\rVert^2/N$. So the objectives converge, uniformly on bounded sets, and with them the minimiser, which is unique in the limit. (Minimisers stay bounded, since $\Lambda$ is invertible: for large $N$ the first part alone grows like $\lVert U\rVert^2$.) (c) $\mathbb E\mathbf h=(1-2p)\Lambda\boldsymbol\mu$ and $\tau_i\to1$ for $i\le r$.
# :::
#
# So the model does what language models are said to do. Directions that it has room to read follow the labels, right or wrong; all others stay as they were learned. *A small model is flatter because it hears less and remembers the rest, and from the rank on at which it hears half of the signal, all labels flipped turn it round.* With the variances of this page and $\mu_i=1$ the signal that is heard, the left side of {eq}`eq-11-half`, is 3 of 7.2 at rank one and 5 of 7.2 at rank two. *Prediction:* rank one stays above one half, all others end below.

# %%
prior, far = torch.ones(d), 10**5
check = InContextRegression(tuple(spectrum), n_train)
x, y, query, _ = check.sample(check_prompts, stream(40), torch.zeros(d))
w = prior + torch.randn(check_prompts, d, generator=stream(41))
h = torch.einsum("nm,nmd,nme,ne->nd", torch.ones_like(y), x, x, w) / n_train
v2 = torch.tensor(icl.pass_through(spectrum, n_train, 2) / np.array(spectrum)).float()
left = ((w - h * v2) * query).sum(1)  # what the context leaves to be told
fitted = torch.linalg.lstsq(query, left[:, None]).solution[:, 0]
exact_path = 1 - icl.pass_through(spectrum, n_train, 2)
path_error = np.abs(fitted.numpy() - exact_path).max()
print(f"the best path, fitted on prompts, is that of (a) up to {path_error:.2f}")

x, y, query, target = world.sample(check_prompts, stream(42), prior, noise=noise)
turned = torch.rand(y.shape, generator=stream(43))
runs = 20  # that share the prompts
knowing = np.zeros((d + 1, 11, runs))  # share of right signs, by rank and flips
for k, p in enumerate(np.linspace(0, 1, 11)):
    labels = torch.where(turned < p, -y, y)
    h = torch.einsum("nm,nmd->nd", labels, x) / n_context
    for r in ranks:
        tau = torch.tensor(icl.pass_through(spectrum, far, r)).float()
        weights = h * tau / torch.tensor(spectrum) + (1 - tau) * prior
        right = (weights * query).sum(1) * target > 0
        parts = right.double().tensor_split(runs)
        knowing[r, k] = [part.mean().item() for part in parts]

# %% tags=["hide-input"]
fig, ax = plt.subplots(figsize=(6.0, 3.1))
for r, color in zip(ranks, figures.shades(d + 1)):
    shown = knowing[r].mean(1)
    ax.plot(np.linspace(0, 100, 11), shown, "o-", color=color, ms=3.5, lw=1.4)
    if r < 4 or r == d:
        ax.annotate(f"rank {r}", (101, shown[-1] - 0.015), color=color)
ax.axhline(0.5, **figures.LINES["chance"])
ax.set(xlabel="labels flipped (%)", ylabel="share of right signs", xlim=(0, 116))
ax.set_title("With a prior, small models are flatter and large ones turn round")
figures.show(
    fig,
    alt="Share of right signs over flipped labels by rank. Rank zero is flat at one, "
    "rank one falls but stays above one half, all larger ranks fall below it, the "
    "further the larger.",
)

# %% tags=["remove-cell"]
rise = np.diff(knowing[:5, 0] - knowing[:5, -1], axis=0).min(0)
small, large = knowing[1, -1], knowing[2:, -1].max(0)
ledger.mean("a-prior-makes-small-models-flat", small=small, large=large, rise=rise)

# %% [markdown]
# The prediction holds: with all labels flipped the signs are right in 57 % of the cases at rank one and in 40 % at rank two. (The lines without a name are ranks 4 and 5.) Without flips, too, the smallest models are the best here: the task is the common part itself, so that eight examples can only add noise to what is known.
#
# ## Parities: the derivation
#
# A linear model does not solve parities, and heads with a ReLU do. In the limit of long contexts $\mathbf z$ becomes $\mathbb E[y\phi]=2\gamma(\mathbf e_i+\mathbf e_j)$, since $y\phi_i=\phi_j$ has mean $2\gamma$ and all else has none. So a head with diagonal $\mathbf v$ sees $2\gamma(v_i\phi_{q,i}+v_j\phi_{q,j})$: the pair of the task, selected by the context. The thesis's network gives each feature a number, and looks at its binary digits. Let $\mathbf b_n\in\{\pm1\}^d$ be the $n$-th digit of $0,1,\dots,d-1$.
#
# $$
# g_\nu(\boldsymbol\zeta)=\frac1{4\gamma}\Bigl[\nu\,\lvert\mathbf 1^\top\boldsymbol\zeta\rvert-\sum_{n=1}^{\nu}\lvert\mathbf b_n^\top\boldsymbol\zeta\rvert\Bigr]
# $$ (eq-11-code)
#
# is a sum of $2(\nu+1)$ heads, since $\lvert s\rvert=\sigma(s)+\sigma(-s)$. The *small* model has $\nu=\nu_1$, the *large* one $\nu=\nu_2$.
#
# ::::{prf:theorem} What the bit code does (after Theorem 5.5.1; the margin is ours)
# :label: thm-11-code
#
# For noiseless contexts of a task $(i,j)$ the margin is a Hamming distance: $y\,g_\nu$ is the number of the first $\nu$ binary digits in which $i-1$ and $j-1$ differ. So the large model has zero hinge loss on all tasks and the small one on all tasks with two important features; it fails $2^{\nu_1}\binom{2^{\nu_2-\nu_1}}2$ of the other pairs, at loss 1. The squared norm of the weights is $\frac{d\,\nu(\nu+1)}{8\gamma^2}$. $g_\nu$ is even and positively homogeneous in $\boldsymbol\zeta$.
# ::::
#
# :::{prf:proof}
# A digit in which $i-1$ and $j-1$ agree responds just as $\mathbf 1$ does, and one in which they differ responds exactly when $\mathbf 1$ does not; so the difference in {eq}`eq-11-code` counts the digits that differ. If the label is 1, $\zeta_i=\zeta_j=\pm2\gamma$; then $\lvert\mathbf 1^\top\boldsymbol\zeta\rvert=4\gamma$, and $\lvert\mathbf b_n^\top\boldsymbol\zeta\rvert$ is $4\gamma$ where the digits agree and 0 where they differ. So $g=\nu-(\nu-\mathrm{Ham})$. If it is $-1$, $\zeta_i=-\zeta_j$, the sum vanishes, the digits that differ give $4\gamma$ each, and $g=-\mathrm{Ham}$. Different numbers below $2^\nu$ differ in a digit; pairs fail if their first $\nu_1$ digits agree: $2^{\nu_1}$ groups of $2^{\nu_2-\nu_1}$ numbers. Norm: $2\nu$ heads with $d$ entries $\frac1{4\gamma}$ and two with $\frac\nu{4\gamma}$.
# :::
#
# **What is not so.** Theorem 5.5.1 says that these networks are *the* minimisers of the loss with vanishing weight decay, for $2(\nu+1)$ heads. Three things are wrong with that, and all can be checked by enumeration.
#
# 1. *It is not of least norm.* For $d=4$, give each feature its own negative head, $\frac1{8\gamma}(3,-1,-1,-1)$ and its shifts, and two positive heads $\pm\frac2{4\gamma}\mathbf 1$. These are six heads, too, every margin is exactly 1, and $\gamma^2\sum\lVert V\rVert^2=2.75$ instead of 3. (At $d=2$ even a diagonal $V$ is not best: $V_{11}=V_{21}$, $V_{12}=V_{22}$ halves the norm.)
# 2. *Four heads suffice, whatever $d$ is.* The count of the thesis lets only the signs of a head's entries matter. But a negative head $\mathbf v$ answers to $\zeta_i=-\zeta_j=2\gamma$ as soon as $v_i>v_j$, and two heads can put all features in order: with $v_i=\frac1{2\gamma}(i-\frac{d+1}2)$, the network $\frac{d-1}{4\gamma}\lvert\mathbf 1^\top\boldsymbol\zeta\rvert-\lvert\mathbf v^\top\boldsymbol\zeta\rvert$ has margin $\lvert i-j\rvert\ge1$ where the label is $-1$, and at least $(d-1)-(d-2)=1$ where it is 1, since $\lvert i+j-d-1\rvert\le d-2$. No network has fewer, diagonal or not: whatever $V$ is, a head sees a linear function of $\phi_q$, so that a head that responds at $\phi_q$ is silent at $-\phi_q$, which has the same label and, as $\gamma<\frac14$, can occur; either label needs two. Four heads are dear, though, with a squared norm of $\frac{d(d-1)(2d-1)}{12\gamma^2}$. Heads whose entries are $\pm1$, up to a factor, can give names: let each feature have a set of negative heads, so that no set contains another; $n$ heads serve $\binom n{\lfloor n/2\rfloor}$ features (Sperner). For $d=8$ five are enough instead of six, for $d=16$ six instead of eight ([Spencer, 1970](../book/references.bib#spencer1970separating)), and of these networks the norm, too, is below the bit code's.
# 3. *The small model is part of the large one only up to a factor*: its positive heads have the scale $\nu_1$, those of the large one $\nu_2$.
#
# What follows uses the construction and not its optimality.

# %%
# NBVAL_CHECK_OUTPUT
margin_error = norm_error = 0.0
for small, large in ((1, 2), (1, 3), (2, 4), (2, 5)):
    pairs = parity.patterns(2**large, gamma)[2]
    for used in (small, large):
        code = parity.bit_code(large, used, gamma)
        seen = parity.margins(code, gamma)
        distance = parity.hamming(pairs, used)[:, None]
        margin_error = max(margin_error, np.abs(seen - distance).max())
        norm = parity.bit_code_norm(large, used, gamma)
        norm_error = max(norm_error, abs(code.norm / norm - 1))
        if used == small:
            solved = seen.min(1) >= 1 - 1e-9
            important = (pairs < 2**small).all(1)
            failed = (~solved).sum()
            counted = 2 ** (large - 1) * (2 ** (large - small) - 1)
            print(f"d = {2**large}, small model: all important pairs solved:", end=" ")
            print(bool(solved[important].all()), end=" ")
            print(f"| others failed: {failed} of {(~important).sum()},", end=" ")
            print("as counted:", failed == counted)
print("margins are Hamming distances to 1e-12:", margin_error < 1e-12)
print("norms are d nu (nu + 1) / (8 gamma^2) to 1e-12:", norm_error < 1e-12)

# %%
# NBVAL_CHECK_OUTPUT
rivals = {
    (4, 6): (parity.one_against_all(gamma), 2),
    (8, 7): (parity.subset_code(5, 2, 8, gamma), 3),
    (16, 8): (parity.subset_code(6, 3, 16, gamma), 4),
    (8, 4): (parity.ordering_code(8, gamma), 3),
    (16, 4): (parity.ordering_code(16, gamma), 4),
}
print("d   heads  least margin  gamma^2 norm   bit code: heads, gamma^2 norm")
for (size, heads), (rival, bits) in rivals.items():
    margin = parity.margins(rival, gamma).min()
    own = parity.bit_code_norm(bits, bits, gamma) * gamma**2
    norm = rival.norm * gamma**2
    print(f"{size:<3} {heads:<6} {margin:<13.3f} {norm:<14.2f}", end=" ")
    print(f"{2 * bits + 2}, {own:.2f}")
even = np.array([[1.0, 0.0], [0.0, 1.0]])
spread = np.full((2, 2), 0.5)
probe = np.array([1.0, 1.0])  # z of the only task of d = 2, up to its factor
same = np.allclose(probe @ even, probe @ spread)
saved = (spread**2).sum() / (even**2).sum()
print(f"d = 2: same outputs off the diagonal: {same}, at {saved:.2f} of the norm")
print("digits of the small model are the large one's:", end=" ")
print(bool((parity.digits(4, 2) == parity.digits(4)[:2]).all()))

# %% tags=["remove-cell"]
ledger.exact("bit-code-solves-its-tasks", margin=margin_error, norm=norm_error)
rival = rivals[4, 6][0]
least = parity.margins(rival, gamma).min()
ledger.exact("bit-code-is-the-optimum", norm=rival.norm * gamma**2, margin=least)
rival = rivals[8, 4][0]
least = parity.margins(rival, gamma).min()
ledger.exact("heads-needed", heads=len(rival.signs), margin=least)
chance = np.random.default_rng(seed)
noises = 2 * chance.integers(0, 2, (40000, 16, 16)).mean(1) - 1  # (draw, feature)
power = {
    nu: parity.projected_noise(parity.bit_code(4, nu, gamma), noises) / ((nu + 1) / 16)
    for nu in (1, 2, 4)
}
ledger.mean("noise-ratio", one=power[1], two=power[2], four=power[4])

# %% [markdown]
# ### How accurate are they?
#
# With a finite context $\boldsymbol\zeta$ is noisy. Theorem 5.5.2 compares the noise in the span of the heads, which is $(\nu+1)/M$, since $\mathbf 1$ and the digits are orthogonal. But no head has less noise in the small model: each $\langle\mathbf b,\boldsymbol\zeta\rangle$ has variance $d/M$ there and here. The difference is in how many of them have to be right together.
#
# ::::{prf:proposition} Accuracy with finite contexts (ours)
# :label: prop-11-accuracy
#
# Let $\nu$ be fixed, and let $M$ and $d$ grow with $\kappa=4\gamma\lvert1-2p\rvert\sqrt{M/d}$ fixed, where labels of the context are flipped with probability $p$. The accuracy of $g_\nu$ on a task whose numbers differ in $h$ of the $\nu$ digits tends to the probability that
#
# $$
# \pm\Bigl(\nu\,\lvert X_0\rvert-\sum_{n=1}^\nu\lvert X_n\rvert\Bigr)>0,\qquad X_n\sim\mathcal N(\kappa_n,1)\ \text{independent},
# $$ (eq-11-law)
#
# averaged over the sign, the label: for $+$, $\kappa_0$ and the $\kappa_n$ of the $\nu-h$ digits that agree are $\kappa$; for $-$, those of the $h$ digits that differ are; all others are 0. For $\nu=h=1$ it is $1-2q(1-q)$ with $q=\Phi(\kappa/\sqrt2)$.
# ::::
#
# :::{prf:proof}
# What a head sees is a sum of many independent terms, hence normal in the limit; the features off the pair make its noise, and the pair makes its mean. Off the pair $y\phi_l$ is a fair coin, so $\mathbf 1^\top\boldsymbol\zeta$ and $\mathbf b_n^\top\boldsymbol\zeta$ are sums of $d-2$ independent terms of variance $\frac1M$, plus the pair's; divided by $\sqrt{d/M}$ they are asymptotically normal with variance 1, and uncorrelated because the vectors are orthogonal. Their means are those in the proof of {prf:ref}`thm-11-code`, times $1-2p$, over $\sqrt{d/M}$; their signs do not matter, as only $\lvert X_n\rvert$ counts. For $\nu=h=1$: $\lvert X_0\rvert>\lvert X_1\rvert$ is $(X_0-X_1)(X_0+X_1)>0$, and these two are independent $\mathcal N(\kappa,2)$.
# :::
#
# The large model has $\nu=\log_2d$, which grows with $d$, so that the proposition does not cover its limit. For $d=16$ and 64 we use {eq}`eq-11-law` with $\nu=4$ and 6 as an approximation and check it by simulation. Flips enter through $\lvert1-2p\rvert$ only: with *all* labels flipped the parity models answer as if none were. *Prediction:* accuracies for all $d$, $M$ and $p$ fall on one curve for each $\nu$; the small model's is higher.


# %%
def parity_accuracy(n_bits, n_important, used, n_context, flip=0.0):
    """Right answers (prompt,), 0 or 1, on tasks of the first 2^n_important features."""
    g = np.random.default_rng([seed, n_bits, used, n_context, int(100 * flip)])
    k = 2**n_important
    first = g.integers(0, k, parity_prompts)
    tasks = np.stack([first, (first + g.integers(1, k, parity_prompts)) % k], 1)
    zeta, y = parity.context_signal(tasks, 2**n_bits, n_context, gamma, g, flip)
    margin = y * parity.bit_code_output(zeta, used, gamma)
    return (1 + np.sign(margin)) / 2  # half of a tie


contexts, flipped = (16, 64, 256, 1024), (0.0, 0.25, 0.5, 0.75, 1.0)
PLACES = ((0.9, 0.86), (2.0, 0.75), (3.3, 0.62))  # of labels in the figure
sizes = {(4, 1): SMALL, (4, 4): LARGE, (6, 1): THIRD, (6, 6): PINK}
cases = [(m, 0.0) for m in contexts] + [(256, p) for p in flipped[1:]]
answers = {
    (bits, used, m, p): parity_accuracy(bits, 1, used, m, p)
    for bits, used in sizes
    for m, p in cases
}
grid = {setting: right.mean() for setting, right in answers.items()}

# %%
kappas = np.linspace(0.01, 6.5, 18)
law = {n: [parity.gaussian_accuracy(k, n) for k in kappas] for n in (4, 6)}
law[1] = parity.small_accuracy(kappas)
law_error = {}
for (bits, used, m, p), seen in grid.items():
    k = parity.signal_to_noise(2**bits, m, gamma, p)
    exact = parity.small_accuracy(k) if used == 1 else parity.gaussian_accuracy(k, used)
    if m >= 256:
        law_error[bits, used, m, p] = abs(seen - exact)

# %% tags=["hide-input"]
fig, axes = plt.subplots(1, 2, figsize=(7.5, 3.2), width_ratios=(1.2, 1))
markers = {4: "o", 6: "^"}
for used, place, color in zip((1, 4, 6), PLACES, (SMALL, LARGE, PINK)):
    axes[0].plot(kappas, law[used], color=color)
    axes[0].annotate(f"$\\nu={used}$", place, color=color)
for (bits, used), color in sizes.items():
    color = SMALL if used == 1 else color
    k = [parity.signal_to_noise(2**bits, m, gamma, p) for m, p in cases]
    values = [grid[bits, used, m, p] for m, p in cases]
    axes[0].plot(k, values, markers[bits], color=color, ms=4.5, alpha=0.7)
axes[0].set(xlabel="$\\kappa$, signal over noise of a head", ylabel="accuracy")
axes[0].set(title="$d=16$ (dots) and $64$ (triangles)", ylim=(0.45, 1.02))
for used, color in ((1, SMALL), (4, LARGE)):
    values = [grid[4, used, 256, p] for p in flipped]
    axes[1].plot(100 * np.array(flipped), values, "o-", color=color)
axes[1].set(xlabel="labels flipped (%)", title="$d=16$, $M=256$", ylim=(0.45, 1.02))
axes[1].annotate("small", (53, 0.9), color=SMALL)
axes[1].annotate("large", (78, 0.55), color=LARGE)
figures.show(
    fig,
    title="One number tells the accuracy, and flipping all labels changes nothing",
    alt="Left: accuracy over signal to noise; dots and triangles of all settings lie "
    "on three rising curves, highest for one digit and lowest for six. Right: accuracy "
    "over flipped labels is symmetric around one half, where it is one half.",
)

# %% tags=["remove-cell"]
leads = [answers[4, 1, m, 0.0] - answers[4, 4, m, 0.0] for m in (64, 256)]
ledger.mean("small-answers-better-in-context", short=leads[0], longer=leads[1])
ledger.exact("one-number-tells-the-accuracy", sum(e > 0.03 for e in law_error.values()))
falls = [answers[4, used, 256, 0.0] - answers[4, used, 256, 1.0] for used in (1, 4)]
ledger.mean("parity-models-follow-flips", small=falls[0], large=falls[1])

# %% [markdown]
# The law holds in our simulations at $d=16$ and 64, to within 0.03 for $M\ge256$. It also tells how long a context has to be: $\kappa\gg1$ means $M\gg d/(16\gamma^2)$, which is 25 for $d=16$ and 100 for $d=64$ at $\gamma=0.2$. With the paper's $M=16$ no accuracy reaches 0.6. And the right panel is a surprise if one comes from the language models: half of the labels flipped is the worst case, and all flipped is harmless. The parity setting explains why *noise* hurts the larger model more; it cannot say anything about following wrong labels.

# %% [markdown]
# <a id="11-text"></a>
# ## Real sentences: linear attention
#
# From here on the data are sentences that people wrote about films, each rated by twenty others, from the family of texts that SST-2 comes from ({py:func}`~mvnb.data.load_sentiment`). A sentence becomes a vector, by counts of its words and a singular value decomposition. The linear attention of {prf:ref}`thm-11-rank` is given the covariance of these vectors and nothing else; then it gets contexts of labelled sentences, $y=\pm1$, and is asked about others. Neither are the vectors normal nor the labels linear in them.
#
# *Prediction:* since $\hat y$ is linear in the labels, flipping all of them turns $\mathbb E(\hat y-y)^2$ into $\mathbb E(\hat y+y)^2$, so what is lost is $4\mathbb E[y\hat y]$, and grows with each direction that has some signal. Labels that are fair coins give $\mathbb E\hat y^2=\frac1M\sum_{i\le r}\tau_i^2$, whatever the distribution of the vectors.

# %%
try:
    if not text:
        raise FileNotFoundError("no sentences were asked for")
    reviews = load_sentiment(text).clear(least=0.5, most_words=60)
except FileNotFoundError as error:
    reviews = None
    print(f"not run, here and below: {error}")


def text_vectors(texts):
    """Centred coordinates (n, text_dims) by falling variance, and the variances."""
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer

    counts = TfidfVectorizer(sublinear_tf=True, min_df=3).fit_transform(texts)
    z = TruncatedSVD(text_dims, n_iter=3, random_state=0).fit_transform(counts)
    z = (z - z.mean(0)) / np.sqrt((z**2).sum(1).mean())
    values, axes = np.linalg.eigh(z.T @ z / len(z))
    return z @ axes[:, ::-1], values[::-1].copy()


# %%
text_ranks = np.array([4, text_dims // 2, text_dims])
if reviews:
    z, variances = text_vectors(reviews.texts)
    y = 2.0 * reviews.labels.numpy() - 1
    g = np.random.default_rng(seed)
    in_context = g.integers(0, len(y), (text_contexts, text_examples))
    asked = g.integers(0, len(y), (text_contexts, 50))
    v = icl.pass_through(variances, 200, text_ranks) / variances  # (rank, dim)
    coins = 2.0 * g.integers(0, 2, in_context.shape) - 1
    told = {}
    for name, labels in (("labels", y[in_context]), ("coins", coins)):
        h = np.einsum("cm,cmd->cd", labels, z[in_context]) / text_examples
        told[name] = np.einsum("rd,cd,cqd->rcq", v, h, z[asked], optimize=True)
    right = (told["labels"] * y[asked] > 0).mean((1, 2))
    lost = 4 * (told["labels"] * y[asked]).mean(2)  # (rank, context)
    heard = (told["coins"] ** 2).mean(2)
    heard_exact = ((v * variances) ** 2).sum(1) / text_examples
    print("rank, accuracy, accuracy with all labels flipped, loss by the flips")
    for r, one, loss in zip(text_ranks, right, lost.mean(1)):
        print(f"{r:>4}  {one:.3f}  {1 - one:.3f}  {loss:.3f}")

# %% tags=["remove-cell"]
TEXT_CLAIMS = ("text-flips-hurt-larger-models-more", "text-noise-grows-with-rank")
if reviews:
    steps = np.diff(lost, axis=0)  # paired by context
    ledger.mean(TEXT_CLAIMS[0], first=steps[0], second=steps[1])
    small, half, full = heard / heard_exact[:, None]
    ledger.mean(TEXT_CLAIMS[1], small=small, half=half, full=full)
else:
    for id in TEXT_CLAIMS:
        ledger.not_run(id, "the film reviews are not there")

# %% [markdown]
# More directions make the model better with true labels and worse with flipped ones, both monotonically. With coins for labels the answers are as large as the formula says, to within 3 %. That much of the theory does not need normal data.
#
# <a id="11-language"></a>
# ## Real sentences: a language model
#
# The paper's own experiment, in the templates of ([Min et al., 2022](../book/references.bib#min2022metaicl)), puts $M=16$ sentences with labels before a question,
#
# ```text
# sentence: show us a good time
# The answer is positive.
#
# sentence: it 's a charming and often affecting journey
# The answer is
# ```
#
# and takes for the answer that one of the two words which is more probable. A growing share of the context's labels is flipped, never that of the question. Its Llamas have 3 to 70 billion parameters. We have SmolLM2 ([Ben Allal et al., 2025](../book/references.bib#allal2025smollm2)), tuned on instructions, with 135 million and weights kept in four bits: smaller than the smallest one, and alone. So *size cannot be compared here*. What can be asked is whether a small model is as the paper says small models are: flat in the flips, and seldom worse than a guess.
#
# How flat is flat? The paper prints no numbers, but the notebook that draws Figure 5.2 is public (`notebook/camera.ipynb` in the repository `OliverXUZY/rethink_icl`). The means over its five tasks, without flips and with all labels flipped, are 67.0 and 50.9 % for 3B, 70.1 and 47.4 % for 7B, 77.8 and 49.0 % for 13B, and 87.9 and 33.0 % for 70B, where guessing gives 50 %. So the paper's smallest model is not flat either: it loses 16 points and ends at a guess. The loss grows with size (16, 23, 29 and 55 points), and only the largest model ends far below a guess.
#
# And there is one thing that the paper does not report. Small models often favour one of the two words throughout, which makes accuracy 50 % however well the sentences are told apart. So beside it we give the share of pairs of a positive and a negative sentence in which the positive one gets the higher odds of *positive* (the area under the ROC curve): it does not depend on a threshold. A third number, *log-odds apart*, is the mean of these odds' logarithm over positive sentences minus that over negative ones.
#
# *Prediction.* From the paper's theory, which has no prior: below one half with all labels flipped. From its words: flat; from its numbers: down to a guess. From {prf:ref}`prop-11-prior`: in between, and above one half if the model hears less than half of what matters.


# %%
ANSWERS = (" negative", " positive")


def ask(text):
    return f"sentence: {text}\nThe answer is"


def context(texts, labels):
    return "".join(f"{ask(t)}{ANSWERS[k]}.\n\n" for t, k in zip(texts, labels))


def flip_labels(labels, share, order):
    """Turn the first round(share * M) labels in this order, and no others."""
    turned = list(labels)
    for place in order[: round(share * len(labels))]:
        turned[place] = 1 - turned[place]
    return turned


def draw_episode(rated, n_examples, n_questions, g):
    """Examples in random order and questions, as (text, label), half of each kind."""
    kinds = [torch.nonzero(rated.labels == k).flatten() for k in (0, 1)]
    half = (n_examples + n_questions) // 2
    chosen = [kind[torch.randperm(len(kind), generator=g)[:half]] for kind in kinds]
    cut = n_examples // 2
    shuffled = torch.randperm(n_examples, generator=g)
    first = torch.cat([one[:cut] for one in chosen])[shuffled].tolist()
    rest = torch.cat([one[cut:] for one in chosen]).tolist()
    labels = rated.labels.tolist()
    return [[(rated.texts[i], labels[i]) for i in part] for part in (first, rest)]


def judge_scores(scores, labels):
    """Accuracy, share of pairs in the right order, and mean distance of log-odds."""
    odds, labels = scores[:, 1] - scores[:, 0], torch.tensor(labels)
    low, high = odds[labels == 0], odds[labels == 1]
    ordered = (high > low[:, None]).double().mean().item()
    correct = ((odds > 0) == (labels == 1)).double().mean().item()
    return correct, ordered, (high.mean() - low.mean()).item()


# %%
def flip_curve(model, rated, g):
    """What judge_scores says without a context, then for each share of flips."""
    examples, questions = draw_episode(rated, llm_examples, llm_questions, g)
    texts, labels = zip(*examples)
    order = torch.randperm(llm_examples, generator=g).tolist()
    asked = [ask(text) for text, _ in questions]
    truth = [label for _, label in questions]
    contexts = [""]
    contexts += [context(texts, flip_labels(labels, p, order)) for p in llm_flips]
    scores = [model.answer_scores(one, asked, ANSWERS, batch=32) for one in contexts]
    return [judge_scores(one, truth) for one in scores]


try:
    if not language_model:
        raise FileNotFoundError("no language model was asked for")
    if not reviews:
        raise FileNotFoundError("there are no sentences to show it")
    model = load_language_model(language_model, "auto", device)
    print(f"{model.name}: {model.n_parameters / 1e6:.0f} million parameters")
except FileNotFoundError as error:
    model = None
    print(f"not run here, but kept from a longer run: {error}")


# %% [markdown]
# The other experiment looks at attention. An irrelevant sentence is put beside the review, and the paper takes the norm of the last row of the last layer's attention maps, from the label to either sentence. We draw the irrelevant ones from editorials that were rated as neutral, of nearly the same length in tokens, and, since nearness to the label may matter by itself, put each of them once before and once after the review.
#
# It matters where the span of the relevant sentence begins. In the code that the authors published (`OliverXUZY/icl-norm`) attention is averaged over heads before the norm is taken, the review comes first, and the relevant span begins at token 0, which marks the start of a prompt for Llama and draws attention whatever follows. In 20 attention maps that are stored with this code, of prompts with arithmetic problems, the norm of the last row over tokens 0 to 19 is 0.458 in the mean. The weight on token 0 alone is 0.457; the norm over tokens 1 to 19 is 0.019, and that over tokens 20 to 39 is 0.081. (With the ends of the sentences that are stored beside the maps: 0.458 and 0.022 before the irrelevant sentence, with and without token 0, and 0.140 on it.) So in these maps nearly all of the norm that counts as attention to what is relevant is on token 0, and without it the other span is ahead.
#
# We take the norm over all heads and tokens, and leave the first token out in all rows but one. This row is ours and compares both choices, with the review first, as in the paper. (SmolLM2 reads no mark at the start; its first token is the word *sentence*.) *Prediction.* If the first token counts as part of the relevant sentence, this sentence has at least twice the attention of the other; without the first token it has less than twice.


# %%
def attention_norms(model, relevant, irrelevant, batch=16):
    """Norms (prompt, order, label, span) of the label's attention in the last layer.

    Spans: relevant and irrelevant sentence; from token 0, and from 1, to the first's end.
    """
    rows, spans = [], []
    for one, other in zip(relevant, irrelevant):
        for turn in (1, -1):
            for answer in ANSWERS:
                pair = [model.encode(" " + t) for t in (one, other)][::turn]
                start = model.encode("sentence:")
                cuts = np.cumsum([len(start), *map(len, pair)])
                end = model.encode("\nThe answer is") + model.encode(answer)
                rows.append(torch.tensor([*start, *pair[0], *pair[1], *end]))
                spans.append([cuts[:2], cuts[1:]][::turn])
                spans[-1] += [(0, cuts[1]), (1, cuts[1])]
    norms = []
    for at in range(0, len(rows), batch):
        part = rows[at : at + batch]
        tokens = torch.nn.utils.rnn.pad_sequence(part, batch_first=True)
        maps = model.attention(tokens)
        for one, row, span in zip(maps, part, spans[at : at + batch]):
            norms.append([one[:, len(row) - 1, a:b].norm().item() for a, b in span])
    return np.array(norms).reshape(len(relevant), 2, 2, 4)


# %%
def attention_pairs(model, n, g):
    """Reviews, and for each the neutral editorial nearest to it in length."""
    rated = load_sentiment("movies").clear()
    other = load_sentiment("editorials")
    other = other.keep(other.ratings.abs() <= 0.2).clear(least=0.0)
    own = [rated.texts[i] for i in torch.randperm(len(rated.texts), generator=g)[:n]]
    pool = torch.randperm(len(other.texts), generator=g)[: 20 * n].tolist()
    lengths = {i: len(model.encode(other.texts[i])) for i in pool}
    found = []
    for text in own:
        size = len(model.encode(text))
        found.append(min(lengths, key=lambda i: abs(lengths[i] - size)))
        del lengths[found[-1]]
    return own, [other.texts[i] for i in found]


# %%
if model:
    sets = {name: load_sentiment(name).clear() for name in llm_sets}
    g = stream(50)
    live = {
        name: np.array([flip_curve(model, one, g) for _ in range(llm_contexts)])
        for name, one in sets.items()
    }  # set: (context, 1 + flip, accuracy, order or log-odds)
    norms = attention_norms(model, *attention_pairs(model, llm_prompts, g))
    everything = np.concatenate(list(live.values())).mean(0)
    print("flipped     accuracy  order of pairs  log-odds apart")
    for p, row in zip(["none shown", *llm_flips], everything):
        print(f"{p!s:<12}{row[0]:<10.2f}{row[1]:<16.2f}{row[2]:.2f}")
    mean = norms.mean((0, 1, 2))
    print(f"attention: relevant {mean[0]:.3f}, irrelevant {mean[1]:.3f}")
    _, other, *spans = norms[:, 0].mean(1).T  # review first: each (prompt,)
    with_first, without = (np.log2(span / other) for span in spans)
    for name, lead in (("counted", with_first), ("left out", without)):
        ahead, times = (lead > 0).mean(), 2 ** lead.mean()
        print(f"first token {name}: {times:.1f} times the other, ahead {ahead:.0%}")

# %% tags=["remove-cell"]
MODEL_CLAIMS = ("language-model-keeps-what-it-knew", "first-token-makes-the-lead")
if model:
    flipped_rows = np.concatenate(list(live.values()))[:, 1 + llm_flips.index(1.0)]
    ledger.mean(MODEL_CLAIMS[0], flipped_rows[:, 1])
    ledger.mean(MODEL_CLAIMS[1], counted=with_first, left_out=without)
else:
    for id in MODEL_CLAIMS:
        ledger.not_run(id, "the language model is not there")

# %% [markdown]
# With the review first, the relevant span has ten times the attention of the other sentence if it begins at the first token (the geometric mean of eight prompts), and is ahead in every prompt. Without this token it has 1.2 times as much, and eight prompts do not tell which sentence is ahead. With twenty other seeds these means are 7 to 15 and 0.9 to 1.6. So in this model, too, most of the lead comes from the first token.
#
# A few contexts say little. The longer run has all four sets of sentences (film and product reviews, editorials, tweets), more contexts, and shares between none and all; the command stands [below](#11-not-run). It is the right panel of the [opening figure](#fig-11-opening). Its stored file comes from an earlier run of this chapter with seed 0, of which neither the version of the code nor the hardware was recorded. So the four claims that rest on it cannot be traced, and will be replaced.

# %%
kept = kept_runs.load("icl_and_scale", "llm")
kept_flips = np.array(kept["flips"])
kept_sets = {name: np.array(one) for name, one in kept["sets"].items()}
per_context = np.concatenate(list(kept_sets.values()))  # (context, 1 + flip, 3)
intervals = [[stats.mean_interval(c).plus_minus for c in one] for one in per_context.T]
mid = np.array(intervals)
n = len(per_context)
print(f"{kept['model']}, {n} contexts, {kept['questions']} questions each")
print("flipped     accuracy       order of pairs")
for p, one in zip(["none shown", *kept_flips], mid[:2].transpose(1, 0, 2)):
    print(f"{p!s:<11}", "  ".join(f"{m:.2f} +- {e:.2f}  " for m, e in one))

# %% tags=["remove-cell"]
fig, axes = plt.subplots(1, 2, figsize=(7.5, 3.3))
draw_flips(axes[0])
axes[0].set_title("linear attention: error by rank")
for c, color, label in ((0, SMALL, "accuracy"), (1, THIRD, "pairs in order")):
    m, e = mid[c, 1:].T
    axes[1].errorbar(100 * kept_flips, m, e, color=color, fmt="o-", capsize=3)
    axes[1].axhline(mid[c, 0, 0], color=color, lw=1, ls="--")
    for one in kept_sets.values():
        curve = one[:, 1:, c].mean(0)
        axes[1].plot(100 * kept_flips, curve, color=color, lw=0.7, alpha=0.4)
    at = (3, mid[c, 1, 0] + 0.05) if c else (58, mid[c, 4, 0] + 0.06)
    axes[1].annotate(label, at, color=color)
axes[1].axhline(0.5, **figures.LINES["chance"])
axes[1].annotate("guessing", (2, 0.46), color=LINE, fontsize=9)
axes[1].set(xlabel="labels flipped (%)", ylim=(0.3, 1.02))
axes[1].set_title("a small language model")
figures.show(
    fig,
    title="Linear attention follows flips, the more the larger; SmolLM2 only half-way",
    alt="Left: error of linear attention over the share of flipped labels for all "
    "ranks, flat for rank 0 and steepest for full rank. Right: accuracy and share of "
    "ordered pairs of a language model fall with flips and end above one half; "
    "thin lines are four sets of sentences, dashed ones the values without a context.",
    opening=True,
)

# %% tags=["hide-input"]
kept_norms = np.array(kept["norms"])  # (prompt, order, label, sentence)
per_prompt = kept_norms.mean((1, 2))
fig, axes = plt.subplots(1, 2, figsize=(7.5, 3.0), width_ratios=(1, 1.2))
high = 1.05 * per_prompt.max()
axes[0].plot([0, high], [0, high], color=LINE, lw=0.8)
axes[0].plot(*per_prompt.T, "o", color=SMALL, ms=4, alpha=0.7)
axes[0].set(xlabel="to the review", ylabel="to the other sentence", aspect="equal")
axes[0].set(xlim=(0, high), ylim=(0, high), title="norm of attention, by prompt")
by_order = kept_norms.mean(2)  # (prompt, order, sentence)
names = ["review\nfirst", "other\nsecond", "other\nfirst", "review\nsecond"]
cells = [by_order[:, 0, 0], by_order[:, 0, 1], by_order[:, 1, 1], by_order[:, 1, 0]]
tone = [SMALL, LARGE, LARGE, SMALL]
figures.runs(axes[1], dict(zip(names, cells)), tone, size=2.5)
axes[1].set(title="by place", ylim=(0, None))
figures.show(
    fig,
    title="The label attends more to the review, and more to what is nearer",
    alt="Left: attention to the irrelevant sentence over that to the review, one dot a "
    "prompt, scattered around the diagonal. Right: prompts, means and intervals for "
    "either sentence in either place; the review gets more than the other, and the "
    "second place more than the first.",
)

# %% tags=["remove-cell"]
zero, full = 1, len(kept_flips)  # rows without flips and with all
correct = per_context[..., 0]
gain = correct[:, zero] - correct[:, 0]
ledger.mean("small-language-model-learns-in-context", gain)
ledger.mean("small-language-model-is-flat", correct[:, zero] - correct[:, full])
each = {name: one[:, full, 0] for name, one in kept_sets.items()}
each["order"] = per_context[:, full, 1]
ledger.mean("small-language-model-is-no-worse-than-guessing", **each)
prefers = per_prompt[:, 0] > per_prompt[:, 1]
ledger.each("small-language-model-attends-to-the-relevant", prefers)

# %% [markdown]
# In the right panel of the [opening figure](#fig-11-opening) thick lines are means over contexts with 95 % intervals, thin ones the four sets of sentences, and dashed ones what there is without a context. A context with true labels raises the accuracy from 0.56 to 0.74 and the share of pairs in the right order from 78 to 90 %. Wrong labels take this away again, and then little happens: from half of the labels flipped to all of them the accuracy stays where it is, above what it was without a context, and 78 % of the pairs remain in the right order, as many as without one. So this small model is not quite flat: flips cost it 10.6 ± 5.9 points (the paper's smallest model loses 16, on other tasks). But it does not turn the order of the pairs round. By {prf:ref}`prop-11-prior` one would say that it hears less than half of what it knows. The log-odds of the longer run say how much less: with all labels flipped, positive and negative sentences are 0.38 apart, still three quarters of the 0.49 without any context.
#
# Attention in the last layer is on both sentences. The review gets more of it than the editorial, by 0.02, and the second place more than the first, by 0.04; in the paper's figure for one order of the sentences these two could not be told apart.
#
# <a id="11-held-up"></a>
# ## What held up
#
# The sizes are ours wherever the paper has none. Rules were set on pilot runs with seeds from 1000 on, and on pilots of the language model with other contexts than those of the stored run. The row on the first token was added after a pilot that showed which sentence is ahead; its limit was set before the run. Where the sentences or the language model are not installed, the rows that need them say so.
# (The cells that record the claims are in the notebook, but not on the site.)

# %%
# NBVAL_CHECK_OUTPUT
ledger.show()

# %% [markdown]
# **Holds.** The whole theory of linear attention: the truncation (with a proof that needs no diagonal matrices), the risk, its two kinds of noise, and with it, by {eq}`eq-11-risk`, the statement that, once the signal is covered, size matters only if noise was rewarded in pretraining and is present in the context. With flipped labels, which the paper's theory does not have, larger ranks lose more, each direction by its own signal. On real sentences linear attention does the same.
#
# **Does not hold as printed.** The bit code is not the optimum: already at $d=4$ another network of the same size is cheaper, and four heads suffice for every $d$. The theorem on noise needs only the construction and stands, but no single head of the small network hears less noise; it is that fewer heads have to agree.
#
# **Does not explain what it is meant to explain.** That small models are *flat*, in the paper's words, is in neither of its theories, and in its numbers the smallest model falls from 67.0 to 50.9 %. What both theories lack is a model that stops there, at a guess. Linear attention of any rank above 0 follows flipped labels all the way; the parity networks do not follow them at all, whatever their size, since they are even in the labels. What is missing is a prior. With one, {prf:ref}`prop-11-prior`, the same truncation gives the whole picture: what a model has no room to hear, it keeps.
#
# **Undecided.** The 24 contexts of the stored run do not tell whether flips cost the language model more than ten points, nor its 100 prompts whether it prefers the review in six of ten; and the few contexts of the run on this page not whether it turns round.
#
# **Only a stand-in.** One small language model, in four bits, on texts of our choice. It says how a small model behaves; that larger ones follow flips further is quoted from the paper and not seen here.

# %% [markdown]
# <a id="11-not-run"></a>
# ## Not run here
#
# | What the thesis has or suggests | Why not by default | What runs it |
# |---|---|---|
# | Figures 5.1 and 5.2: Llama and Llama-2, 3B to 70B, base and chat, SST-2, Subj and other tasks of GLUE | weights and data are not free to ship, and need large GPUs | `mvnb run 11 --preset paper -p language_model=FOLDER -p llm_sets='["TABLE.tsv"]'` for a folder with a language model as Hugging Face saves it, and a table with lines of a rating (1 or -1), a tab and a text; once for each model |
# | Figure 5.3: Llama-2-13b and 70b, sentences from GSM-IC | the same | the same command; neutral editorials take the place of GSM-IC |
# | The sizes of the stored run of the language model, `kept/llm.json` | 8 minutes of one processor core | `mvnb run 11 --preset longer` |
# | Parity networks trained by gradient descent | the thesis has no training of them; from random starts the hinge loss with $2(\nu+1)$ heads has bad minima | not offered |
# | Larger parity problems | samples of $d\times$ prompts | `mvnb run 11 -p parity_prompts=200000` |
# | Regression in more dimensions | a matter of taste | `mvnb run 11 -p spectrum='[4,3,2,1,0.5,0.25,0.12,0.06]' -p n_train=100` |

# %% [markdown]
# <a id="11-try"></a>
# ## Try it
#
# :::{exercise}
# :label: ex-11-tie
#
# By hand: two directions share the largest variance, and the rank is one. Which models are optimal, and which of them are best for a task $\mathbf w$ in evaluation?
# :::
#
# :::{solution} ex-11-tie
# :class: dropdown
#
# With $\lambda_1=\lambda_2$ the matrix to be approximated, $\Lambda\Gamma^{-1/2}$, is a multiple of the identity on that plane, and every projection on a line in it is equally good: $U=v\,\mathbf e\mathbf e^\top$ for any unit $\mathbf e$. In {eq}`eq-11-risk`, in a basis that contains $\mathbf e$, the covered signal is $\langle\mathbf w,\mathbf e\rangle^2\lambda$, so the best line is the one along $\mathbf w$. Pretraining does not know it.
# :::
#
# :::{exercise}
# :label: ex-11-shrink
#
# By hand: $\tau_i<1$ is a shrinkage that was learned for $N$ examples and noise-free labels. Which $\tau_i$ minimises {eq}`eq-11-risk` for given $w_i$, $\sigma$, $M$ and $p$? When is it zero?
# :::
#
# :::{solution} ex-11-shrink
# :class: dropdown
#
# Each direction is a parabola in $\tau_i$: with $P_i=w_i^2\lambda_i$ and $S=\lVert\mathbf w\rVert_\Lambda^2+\sigma^2$ it is $P_i(1-a\tau)^2+\frac{\tau^2}M[(2-a^2)P_i+S]$, least at $\tau=\dfrac{aP_i}{a^2P_i+\frac1M[(2-a^2)P_i+S]}$. For $a\le0$, at least half of the labels flipped, the best non-negative value is 0, and for $P_i=0$ too. A model that could shrink by what it sees in the context, instead of cutting at a rank, would not have to choose between signal and noise.
# :::
#
# :::{exercise}
# :label: ex-11-margin
#
# By hand: in the bit code, replace the factor $\nu$ of the positive heads by $c$. For which $c$ is the hinge loss zero on all tasks, and why is $c=\nu$ not wasteful?
# :::
#
# :::{solution} ex-11-margin
# :class: dropdown
#
# On labels $-1$ the positive heads are silent, so $c$ does not matter there. On labels 1 the margin is $c-(\nu-\mathrm{Ham})$, and the smallest Hamming distance is 1: $c\ge\nu$.
# :::
#
# :::{exercise}
# :label: ex-11-rerun
#
# Re-run the chapter with longer contexts in evaluation. Which claims of the regression change, and what happens to the best rank?
# :::
#
# :::{solution} ex-11-rerun
# :class: dropdown
#
# `mvnb run 11 -p n_context=200 -p language_model=''`. None: with $M=200$ and no flips larger ranks are still better, and with all labels flipped still worse, since the bias alone orders them, {eq}`eq-11-risk`. The best rank, in the figure on flipped labels, is now full until 47 % of the labels are flipped, and 0 from one half on, because the variance that made small ranks better in between is gone.
# :::

# %% [markdown]
# <a id="11-further"></a>
# ## Further reading
#
# - The observations: Wei et al. ([Wei et al., 2023](../book/references.bib#wei2023larger)) on flipped labels and size, Shi et al. ([Shi et al., 2023](../book/references.bib#shi2023distracted)) on irrelevant context; Min et al. ([Min et al., 2022](../book/references.bib#min2022rethinking)) found that labels in the context matter little to the models of their time, as for our small one.
# - Linear attention and its training on regression: Zhang, Frei and Bartlett ([Zhang et al., 2024](../book/references.bib#zhang2024trained)). Applied in a loop it is gradient descent: [chapter 14](14_looped_transformers.ipynb).
# - Texts and ratings: Hutto and Gilbert ([Hutto and Gilbert, 2014](../book/references.bib#hutto2014vader)), after Pang and Lee ([Pang and Lee, 2005](../book/references.bib#pang2005seeing)).
# - Separating systems: Spencer ([Spencer, 1970](../book/references.bib#spencer1970separating)).
# - Parities as features that one gradient step proposes, and dictionaries of hidden features: {doc}`chapter 9 <09_gradient_features>` and {doc}`chapter 8 <08_feature_emergence>`. A Transformer that learns from its context by softmax attention, and what a large step on the values reveals: {doc}`chapter 6 <06_decision_lists>`.
