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
# # In a model of noisy patches, one trained filter silences the noise
#
# > *Local Signal Adaptivity: Provable Feature Learning in Neural Networks Beyond Kernels*, Stefani Karp, Ezra Winston, Yuanzhi Li and
# > Aarti Singh ([Karp et al., 2021](../book/references.bib#karp2021local)); here in the form of Chapter 3 and Appendix B of [Karp (2024)](../book/references.bib#karp2024thesis).
#
# In the paper's model of an image, one of $k+1$ patches is the signal, and Gaussian noise in the $k$ others drowns it in their sum. A network of one filter and one bias, trained by gradient descent, turns the filter to the signal and then lowers the bias until hardly any noise passes; for large $k$ a fixed number of frozen random filters nearly always errs on a tenth of the points or more, whatever their weights and thresholds. On CIFAR images with distracting backgrounds, the paper's network keeps 97 to 99.8 % of its accuracy, and its *tangent kernel*, which freezes the features, 70 to 93 %.
#
# <a id="fig-05-local"></a>

# %% tags=["remove-input"]
from mvnb import figures

figures.opening()

# %% [markdown]
# Left: a filter in training (three runs) and frozen ones with a common threshold. Right: CIFAR images on noise, a network and a wider one's tangent kernel.
#
# <a id="05-question"></a>
# <a id="the-question-what-can-a-network-do-that-its-own-kernel-cannot"></a>
# ## The question: how can a network find one patch in a thousand?
#
# In the smallest example patches are numbers. One of them, at a random place, is the label $y=\pm1$; the $k$ others are Gaussian noise of standard deviation $\sigma$. The paper takes $\sigma=\log k/\sqrt k$, 0.22 at $k=1000$. The noise has a sum of standard deviation $\sigma\sqrt k=\log k=6.9$, so the sign of the sum of all patches is right with probability $\Phi(1/\log k)=0.56$, where $\Phi$ is the normal distribution function.
#
# A *soft threshold* moves each number towards 0 by $\beta$ and replaces those smaller than $\beta$ by 0. It leaves $1-\beta$ of the signal.
#
# **Predict before you look.** How much of the signal may the threshold cost before it does harm?

# %% tags=["parameters", "hide-input"]
seed = 0  # first seed: replica r is the run with seed + r (integer, 0 or more)
replicas = 3  # runs of the paper's own training experiment (2 or more)
device = "auto"  # "auto", "cpu" or "cuda"; for the images
n_noise = 1000  # noise patches k of a point (20 or more)
dim = 10  # patch dimension d in training (1 or more)
batch = 500  # fresh points per step (1 or more)
steps = 10000  # steps of gradient descent (200 or more)
step_size = 0.1  # step of the filter; that of the bias is 1/k of it (above 0)
sampler = "survivors"  # "survivors" (noise that passes the threshold) or "dense" (all)
fast_replicas = 12  # runs of the small experiment (2 or more)
fast_noise = 200  # its noise patches (2 or more)
fast_step = 0.3  # its step of the filter; that of the bias is 1/20 of it (above 0)
fast_steps = 2000  # its steps (100 or more)
trap_step = 1.5  # a step of the filter that is too large for it (above 0)
kernel_draws = 32  # draws of 1, 4 and 16 frozen filters (5 or more)
many_draws = 2  # draws of 256 frozen filters, and half of those of 64 (2 or more)
kernel_points = 2000  # points on which the formula for them is tested (20 or more)
dataset = "digits"  # or mnist5k, mnist, fashion_mnist, cifar10
image_side = 8  # side of the pasted image in pixels, half its background's (8 or more)
gaussian_noise = 0.5  # standard deviation of Gaussian backgrounds (0 or more)
n_train = 900  # training images of a run (20 or more; 2 * image_batch too)
n_test = 400  # test images of a run (10 or more)
image_width = 16  # first layer's channels; twice as many for the kernel (1 or more)
image_epochs = 20  # passes over the training images (1 or more)
image_batch = 50  # images per step (1 or more)
image_step = 0.02  # largest step of Adam (above 0)
ridge = 0.001  # regularisation of the kernel, over its mean diagonal (above 0)
image_replicas = 4  # runs per background (2 or more)

# %% tags=["hide-input"]
import dataclasses
import functools
import tempfile
from pathlib import Path

import numpy as np

from mvnb import claims, figures, kept_runs, stats, training
from mvnb.data import load_images
from mvnb.papers.local_signal_adaptivity import (
    data,
    measure,
    model,
    plots,
    recipe,
    theory,
)
from mvnb.papers.local_signal_adaptivity import training as arms

# %% tags=["hide-input", "check"]
figures.use_style()
ledger = claims.Ledger("local_signal_adaptivity")
device, seed = training.pick_device(device), training.fold_seed(seed)
print(f"device: {device.type}")
# What may be wrong with the parameters shows here, before anything is trained.
if sampler not in ("survivors", "dense"):
    raise ValueError(f"sampler must be 'survivors' or 'dense', got {sampler!r}")
if n_train < 2 * image_batch:
    wanted = f"2 * image_batch = {2 * image_batch} or more"
    raise ValueError(f"n_train must be {wanted}, got {n_train}")
k, sigma = n_noise, theory.noise_scale(n_noise)
stream = functools.partial(training.stream, seed)  # a generator for each purpose


# %% tags=["hide-input"]
numbers = data.SignalInNoise(n_noise=80, dim=1, sigma=sigma).sample(1, stream(1))
row = (numbers.x * numbers.y).flatten().numpy()  # the signal is 1
figures.show(
    plots.question(row, 0.6, k, sigma),
    title="A threshold silences the noise and keeps the signal",
    alt="Left: a row of numbers, noise mostly within plus minus 0.6 and one signal at 1. "
    "Right: accuracy over the threshold rises from 0.56 at 0 to nearly 1 at 0.8.",
)

# %% [markdown]
# *Answer:* nearly all. At $\beta=0.8$ the sign of the sum is right on 99.7 % of the points, at 0.95 on 99.8 %.
#
# For patches in $\mathbb R^d$ the signal has an unknown direction. If a filter responds to it with $c$, a threshold $|b|$ costs the share $|b|/c$; $v$ is the length of the filter's part orthogonal to the signal.
#
# <a id="05-threshold-explorer"></a>
# :::{explorer} 05-map
# :alt: Left, a map over the filter's response c and the ratio of threshold and c: at high ratios descent lowers the threshold, at low ratios and large c it shrinks the filter, in a band between both grow. The path of descent follows the lower border of the band upwards. Right, accuracy over the ratio rises from 0.56 to nearly one, and the point of the path moves along it.
#
# Descent on the mean loss, and the accuracy, both exact. Move the training step. *Predict:* do more noise patches hurt, with and without a threshold? Does a threshold help a filter with $v=2c$?
# :::
#
# **Answer:** without a threshold they hurt, slowly; with a ratio of 0.3 or more they help, because each noise number is smaller. At $v=2c$ and $k=1000$ no threshold lifts the accuracy above 0.54: the filter has to find the signal first.
#
# <a id="05-world"></a>
# <a id="the-world-one-patch-that-matters"></a>
# ## The world: one patch that matters
#
# :::{prf:definition} Signal in noise (Section 3.3)
# :label: def-05-world
#
# Let $\mathbf w_*\in\mathbb R^d$, $\|\mathbf w_*\|=1$. A point has a label $y=\pm1$, both equally likely, and $k+1$ patches $X_i\in\mathbb R^d$. One patch, at any position, is $y\,\mathbf w_*$. The others are independent and $\mathcal N(0,\sigma^2I_d)$ with $\sigma=\log k/\sqrt k$.
# :::
#
# The sum of all patches, along $\mathbf w_*$ (the first axis):

# %%
# NBVAL_CHECK_OUTPUT
world = data.SignalInNoise(n_noise=1000, dim=10, sigma=theory.noise_scale(1000))
x, y = world.sample(1000, stream(2))  # (point, patch, coordinate)
along = x.sum(1)[:, 0]
print(f"standard deviation {along.std():.1f}")
print(f"its sign is the label in a share {(along.sign() == y).float().mean():.1f}")

# %% [markdown]
# <a id="05-model"></a>
# <a id="the-model-one-filter-one-bias"></a>
# ## The network: one filter, one bias
#
# The network has $d+1$ parameters, a filter $\mathbf w$ and a bias $b$:
#
# $$
# \begin{aligned}
# f_{\mathbf w,b}(X)&=\sum_{i=1}^{k+1}\phi_b(\langle\mathbf w,X_i\rangle),\\
# \phi_b(x)&=\mathrm{ReLU}(x+b)\\
# &\quad-\mathrm{ReLU}(-x+b).
# \end{aligned}
# $$ (eq-05-network)

# %% tags=["remove-input"]
figures.show_code(model.SoftThresholdFilter.forward)

# %% [markdown]
# For $b<0$, $\phi_b(x)=\mathrm{sign}(x)\,(|x|-|b|)_+$ is the soft threshold; for $b=0$ the network is linear. Scaling $(\mathbf w,b)$ by a positive number scales $f$, so the accuracy depends on the direction of $\mathbf w$ and on the *ratio* $|b|/c$, where
#
# $$
# \begin{gathered}
# c=\langle\mathbf w,\mathbf w_*\rangle,\\
# \mathbf w_\perp=\mathbf w-c\,\mathbf w_*,\quad v=\|\mathbf w_\perp\| .
# \end{gathered}
# $$ (eq-05-cv)
#
# The loss is logistic, $\ell=\log(1+e^{-yf})$. Training starts from $b=0$ and a tiny random $\mathbf w$; each step takes fresh points and moves the bias $k$ times more slowly (Algorithm 3.1):
#
# $$
# \begin{gathered}
# \mathbf w\leftarrow\mathbf w-\eta\,\nabla_{\mathbf w}\ell,\\
# b\leftarrow b-\tfrac\eta k\,\partial_b\ell .
# \end{gathered}
# $$ (eq-05-step)
#
# Let $\varsigma(x)=1/(1+e^{-x})$, and let $p_i,q_i\in\{0,1\}$ be the slopes of the two ReLUs at patch $i$. Then
#
# $$
# \begin{aligned}
# \nabla_{\mathbf w}\ell&=-y\,\varsigma(-yf)\sum_i(p_i+q_i)\,X_i,\\
# \partial_b\ell&=-y\,\varsigma(-yf)\sum_i(p_i-q_i).
# \end{aligned}
# $$ (eq-05-gradient)
#
# <a id="05-derivation"></a>
# <a id="the-derivation-i-the-population-gradient-in-closed-form"></a>
# <a id="the-derivation-ii-the-filter-turns-to-the-signal"></a>
# <a id="lem-05-pull"></a>
# ## The derivation, I: the filter turns to the signal
#
# *Idea.* Noise points in all directions, so on average it only pulls the filter back towards 0. The signal pushes with a constant force along $\mathbf w_*$.
#
# Let $Z_i=\langle\mathbf w,X_i\rangle$ for a noise patch; it is $\mathcal N(0,s^2)$ with $s=\sigma\sqrt{c^2+v^2}$. Let $S_i=\phi_b(Z_i)$, $S$ the sum of the $S_i$ over the noise patches, $S_{-i}=S-S_i$, and $g=\phi_b(c)$. Then $yf=g+yS$. All $S_i$ are symmetric, so the network is right with probability $\Pr[S<g]$.
#
# :::{prf:proposition} A noise part and a signal part
# :label: prop-05-gradient
#
# Let $b\le0<c+b$, so that the signal passes the threshold. The gradient of the mean loss lies in the span of $\mathbf w_*$ and $\mathbf w_\perp$, and
#
# $$
# \begin{aligned}
# \nabla_{\mathbf w}\mathbb E\ell\cdot\mathbf w_*&=\tfrac{c}{c^2+v^2}\,\mathcal N_{\mathbf w}-\mathbb E\,\varsigma(-g+S),\\
# \nabla_{\mathbf w}\mathbb E\ell\cdot\hat{\mathbf w}_\perp&=\tfrac{v}{c^2+v^2}\,\mathcal N_{\mathbf w},\\
# \partial_b\mathbb E\ell&=\mathcal N_b-\mathbb E\,\varsigma(-g+S),
# \end{aligned}
# $$ (eq-05-population)
#
# where, for any one noise patch $i$,
#
# $$
# \begin{aligned}
# \mathcal N_{\mathbf w}&=k\,\mathbb E\bigl[D_i\,Z_i\,\mathbb 1[Z_i\ge|b|]\bigr]\ge0,\\
# \mathcal N_b&=k\,\mathbb E\bigl[D_i\,\mathbb 1[Z_i\ge|b|]\bigr]\ge0,\\
# D_i&=\varsigma(-g+S_{-i}+S_i)-\varsigma(-g+S_{-i}-S_i).
# \end{aligned}
# $$ (eq-05-noise)
# :::
#
# :::{prf:proof}
# *One direction counts.* Let $A_i$, $B_i$ be the coordinates of $X_i$ along $\mathbf w_*$ and $\hat{\mathbf w}_\perp$; all others are independent of $f$ and have mean 0. Since $Z_i=cA_i+vB_i$, $\mathbb E[A_i\mid Z_i]=\frac c{c^2+v^2}Z_i$ and $\mathbb E[B_i\mid Z_i]=\frac v{c^2+v^2}Z_i$.
#
# *Pair $y$ with $-y$.* Each noise term of {eq}`eq-05-gradient` becomes $\mathbb E[-y\,\varsigma(-yf)\,h(Z_i)]$ with an odd function $h$. Average over $y$ and flip the sign of $S_{-i}$ where $y=1$: this gives $\frac12\mathbb E[D_ih(Z_i)]$. $D_i$ is odd in $Z_i$, as $h$ is, so both signs of $Z_i$ count alike. $\varsigma$ increases and $S_i$ has the sign of $Z_i$, so nothing is negative.
#
# *The signal patch* gives $-\varsigma(-yf)\mathbf w_*$ and, for the bias, $-\varsigma(-yf)$; $-yf$ has the law of $-g+S$.
# :::
#
# :::{prf:lemma} The filter grows (Lemmas 3.1 and 3.2, sharpened)
# :label: lem-05-growth
#
# Let $b\le0<c+b$. Then $\mathcal N_{\mathbf w}\le\frac k4s^2$, so noise pulls $c$ and $v$ towards 0 with forces of at most $\frac14c\log^2k$ and $\frac14v\log^2k$, and
#
# $$
# -\nabla_{\mathbf w}\mathbb E\ell\cdot\mathbf w_*\ \ge\ \tfrac12\varsigma(-g)-\tfrac14\,c\log^2k .
# $$ (eq-05-growth)
# :::
#
# :::{prf:proof}
# $\varsigma$ has slopes of at most $\frac14$, so $0\le D_i\le\frac12S_i\le\frac12Z_i$ where $Z_i\ge|b|$, and $\mathbb E[Z_i^2\mathbb 1[Z_i\ge|b|]]\le\frac12s^2$. This gives the first bound; $k\sigma^2=\log^2k$ gives the forces. By symmetry $\Pr[S\ge0]\ge\frac12$, so $\mathbb E\,\varsigma(-g+S)\ge\frac12\varsigma(-g)$.
# :::
#
# (Paper: $\log^3k$.) So $c$ grows to the order $1/\log^2k$, and $v$ shrinks (in batches of polynomially many points it stays tiny, Lemma 3.2). A start with $c<0$ is turned, since the signal pushes $c$ upwards.
#
# <a id="the-derivation-iii-the-bias-silences-the-noise"></a>
# ## The derivation, II: the bias silences the noise
#
# *Idea.* While the network errs, noise passes the threshold, and noise that passes raises it: $\mathcal N_b$ adds up the patches that pass, while the signal's part is at most 1.
#
# :::{prf:lemma} A high threshold suffices (Lemma B.5)
# :label: lem-05-enough
#
# If $b<0<c+b$ and $|b|>2s\sqrt{\log k}$, the network errs with probability below $1/k$.
# :::
#
# :::{prf:proof}
# If all $|Z_i|\le|b|$, then $S=0$ and $yf=c+b>0$. Some $|Z_i|$ exceeds $2s\sqrt{\log k}$ with probability below $k\,e^{-2\log k}=1/k$.
# :::
#
# The paper does not print the condition $c+b>0$. Without it the signal may be silenced, too: output and gradient are 0, and training stops for good, as after [a step that is too large](#05-small). For $v\approx0$ the lemma needs a ratio above $2\log^{3/2}k/\sqrt k$, which tends to 0 (at $k=1000$ it is 1.15, and the lemma is empty).
#
# *Lemma 3.3* ([proof](#05-proofs)): for large $k$, while the error is at least $0.01$, $b\le0<c+b$, $v\le c$ and $c\ge C/\log^4k$ (the growth of $c$ gives more), $\partial_b\mathbb E\ell$ exceeds a positive constant. *Why:* by {prf:ref}`lem-05-enough` $|b|\le2s\sqrt{\log k}\ll c$. So an error needs $|S|\ge\frac c2$, though one response is at most of the order $s\sqrt{\log k}$. That takes $k^{1/4}$ patches that pass, so a patch passes with probability at least $C\,k^{-3/4}$. Together they push the bias down with a force of at least $C'c\,k^{1/8}$.
#
# :::{prf:theorem} Gradient descent finds the signal (Theorem 3.1)
# :label: thm-05-upper
#
# There is $k_0$ such that for $k\ge k_0$, with $\mathrm{poly}(k)$ points per step, $\eta=1/\mathrm{poly}(k)$ and $T=\mathrm{poly}(k)$ steps, Algorithm 3.1 returns with probability at least $1-e^{-\Omega(\log^2k)}$ a network that errs with probability at most $0.01$.
# :::
#
# *What is not proved.* The lemmas hold until the first step with error 0.01, where one has to stop. And $k^{1/8}$ exceeds $\log^4k$ only from $k\approx10^{71}$ on.
#
# <a id="05-kernel"></a>
# <a id="the-derivation-iv-why-frozen-filters-fail"></a>
# ## The derivation, III: frozen filters fail
#
# Now $m$ random filters $\mathbf w^{(0)}_j$, scaled to length 1, stay frozen, and only what is linear is trained. This is the network's *tangent kernel* in its filters, with thresholds of our choice; the gradient of {eq}`eq-05-network` gives the features
#
# $$
# \Phi_j(X)=\sum_{i=1}^{k+1}X_i\,\mathbb 1\bigl[|\langle\mathbf w_j^{(0)},X_i\rangle|\ge\tau_j\bigr]
# $$ (eq-05-kernel)
#
# and the classifier $\sum_j\langle\mathbf w_j,\Phi_j(X)\rangle$, with any weights $\mathbf w_j\in\mathbb R^d$ and thresholds $\tau_j$.
#
# *Idea.* The thresholds are along the wrong directions. The signal's projection $a=\langle\mathbf w^{(0)},\mathbf w_*\rangle$ is of the order $1/\sqrt d$. The paper sets $d=1/\sigma^2$, so that the noise's projections have the *same* scale $\sigma$: a threshold that the signal passes is passed by a constant share of the noise.
#
# :::{prf:proposition} The best frozen classifier (ours)
# :label: prop-05-snr
#
# Let the sums over the $k$ noise patches be Gaussian, as they nearly are. One filter with $\tau=t\sigma$, of which a share $P=2\Phi(-t)$ of the noise passes, errs with the best weights with probability $\Phi(-\mathrm{SNR})$, where the signal-to-noise ratio is
#
# $$
# \mathrm{SNR}^2=\frac{\mathbb 1[|a|\ge\tau]}{k\sigma^2}\Bigl[\frac{1-a^2}{P}+\frac{a^2}{P+2t\varphi(t)}\Bigr],
# $$ (eq-05-snr)
#
# with the normal density $\varphi$.
# :::
#
# :::{prf:proof}
# Given $y$, the feature is Gaussian with mean $\pm\mathbf w_*\mathbb 1[|a|\ge\tau]$ and one covariance $\Sigma$, so the best weights are $\Sigma^{-1}\mathbf w_*$ (Fisher's discriminant), and $\mathrm{SNR}^2=\mathbf w_*^\top\Sigma^{-1}\mathbf w_*$. For a noise patch the covariance is $\sigma^2P$ off the filter and $\sigma^2(P+2t\varphi(t))$ along it, since $\mathbb E[U^2\mathbb 1[|U|\ge t]]=P+2t\varphi(t)$ for a standard normal $U$.
# :::
#
# At $t=0$ this is the linear rule, $\mathrm{SNR}=1/(\sigma\sqrt k)$: with less noise frozen filters would do. With $k\sigma^2=\log^2k$ and $t\le\sqrt d\,|a|$, which is of order 1, $P$ is of order 1 and $\mathrm{SNR}=O(1/\log k)$: the error tends to $\frac12$.
#
# :::{prf:theorem} Kernel lower bound (Theorem 3.2)
# :label: thm-05-lower
#
# Let $d=1/\sigma^2$ and $m\le C$ for all $k$. There is $k_1$ such that for $k\ge k_1$, with probability at least $0.999$ over the random filters, the classifier errs with probability at least $0.1$ for all weights and all thresholds.
# :::
#
# The [proof](#05-lower) needs no Gaussian sums. For one filter {eq}`eq-05-snr` gives $k_1\approx5\cdot10^{10}$; at $k=1000$ six in a thousand lie close enough to the signal to err on less than 0.1.
#
# <a id="05-experiments"></a>
# <a id="experiment-i-the-two-stages"></a>
# <a id="experiment-ii-accuracy-is-a-function-of-the-ratio"></a>
# ## The paper's experiments: two stages, and rivals
#
# The paper trains the network with $k=1000$, $d=10$, $\eta=0.1$ and 500 fresh points per step for 10,000 steps (Figure 3.3). It reports no numbers; we run it three times. *Predictions:*
#
# - $c$, $|b|$ and their ratio rise, along the path of descent on the mean loss.
# - The accuracy rises with the ratio and, while $v\ll c$, depends on it alone.

# %%
marks = training.log_steps(steps, 41)
start = arms.filter_start(seed, replicas, dim)
if sampler == "survivors":  # the same in law, and faster
    objective = arms.SurvivorObjective(k, sigma, batch)
    batches = arms.step_keys(seed, replicas)
else:
    objective = arms.SoftThresholdObjective()
    draw = functools.partial(
        data.SignalInNoise(k, dim, sigma).sample, dtype=start["w"].dtype
    )
    batches = training.Fresh(draw, batch, training.generators(seed, replicas), block=1)
log = arms.train_filters(objective, batches, start, steps, step_size, 1 / k, marks)

# %% tags=["hide-input"]
path = theory.population_path(steps, k, sigma, step_size, 1 / k)[:, marks]
figures.show(
    plots.stages(marks, log, path, k, sigma),
    title="First the filter grows, then the threshold; accuracy follows their ratio",
    alt="Three panels over training steps. c rises from 0, b falls below 0; their "
    "ratio rises; accuracy rises from chance to nearly 0.8. All runs lie on the dotted path of the population.",
)
accurate = measure.accuracy(log["c"], log["b"], k, sigma, log["v"])
ratio, trained = -log["b"][-1] / log["c"][-1], 1 - accurate[-1]
print(f"at the end: ratio {ratio.mean():.2f}, accuracy {accurate[-1].mean():.2f}")

# %% tags=["remove-cell"]
ledger.judge(measure.stage_claims(log, path, k, sigma))

# %% [markdown]
# Both hold; batches leave $v\approx0.03$ beside $c\approx0.86$. After 10,000 steps the training is not over: the ratio is 0.44 and the error 0.21. In a [smaller world](#05-small) the error falls below 0.01.
#
# <a id="experiment-iii-frozen-filters"></a>
# **Rivals.** How many frozen filters are as good? Our [formula](#05-frozen) gives the error with the best weights ($d=1/\sigma^2=21$; the trained filter feels $d$ through $v$ only), with the best of five common thresholds ($1.5\sigma$ for 256 filters), and with *oracle* thresholds, each just below $|a_j|$, which need $\mathbf w_*$.

# %% tags=["hide-input"]
kernel_d = max(5, round(sigma**-2))  # at small k more than the rule gives
draws = {1: kernel_draws, 4: kernel_draws, 16: kernel_draws, 64: 2 * many_draws}
errors = {m: measure.frozen_errors(m, n, k, kernel_d, seed) for m, n in draws.items()}
errors[256] = measure.frozen_errors(256, many_draws, k, kernel_d, seed, common=(1.5,))
for m, one in errors.items():
    common, known = one.mean(1)
    print(f"{m:3d} frozen: common thresholds {common:.2f}, oracle {known:.2f}")
print(f"one trained filter: {trained.mean():.2f}")
figures.show(
    plots.frozen(errors, trained),
    title="One trained filter beats sixteen frozen ones; 64 frozen ones beat it",
    alt="Errors of 1, 4, 16, 64 and 256 frozen filters, draws and means. With common thresholds "
    "the means fall from 0.41 to 0.25 with sixteen filters, 0.10 with 64 and 0.02 with 256; with oracle thresholds they are lower. "
    "The line of one trained filter is at 0.21.",
)

# %% tags=["remove-cell"]
ledger.judge(measure.frozen_claims(errors, trained))

# %% [markdown]
# The trained filter beats sixteen frozen ones with a common threshold, and loses to sixteen with oracle thresholds and to 64 and 256 with either. The theorem is about a *fixed* number of filters and large $k$.
#
# **Images.** A digit, pasted as in the paper ($\sigma$ is now that of a pixel's noise; pixels lie in $[0,1]$):

# %% tags=["hide-input", "picture"]
digit = load_images("digits").x_train[:1]
shown = {
    name: data.on_background(digit, kind, level, stream(3))[0]
    for name, kind, level in (
        ("black", "Gaussian", 0.0),
        ("Gaussian, 0.5", "Gaussian", 0.5),
        ("texture", "texture", 1.0),
    )
}
figures.show(
    plots.pictures(shown),
    title="The label is local, the background says nothing about it",
    alt="Three images: a digit on black, one on Gaussian noise, one on a smooth random texture.",
)

# %% [markdown]
# The paper pastes CIFAR images, scaled to $16\times16$ pixels, at random places of $32\times32$ backgrounds, plants from ImageNet or Gaussian noise, or puts a vehicle in one corner and animals in the others. A WideResNet (10 layers) and its linearisation, both trained, classify them (Table 3.1). The share of the accuracy on black that is kept at the strongest background ($\sigma=2$):
#
# | Kept (%) | ten classes, plants | four vehicles, animals | two classes, plants | two classes, Gaussian |
# |---|--:|--:|--:|--:|
# | WideResNet | 98.97 | 97.25 | 99.79 | 96.83 |
# | tangent kernel | 69.75 | 76.37 | 92.81 | 85.54 |
#
# The two classes are animals and vehicles. With Gaussian noise the accuracy falls from 94.7 to 91.7 %, the kernel's from 89.9 to 76.9: the kernel is behind without noise, too. With the image in one fixed corner the shares are 98.4 and 87.0 % (Table B.1), so the varying place is not the reason. The paper names the synthetic backgrounds as a limitation.
#
# <a id="05-images"></a>
# <a id="05-evidence"></a>
# ## Our test: animals and vehicles on noise
#
# A *kept run* was made once, and its numbers are stored with its [settings](#05-kept). Ours has the paper's two classes, 5,000 training images, a network of two convolutions with 24 and 48 channels, and the tangent kernel of a network *twice* as wide (44,017 weights), fitted by ridge regression. Both were tuned on validation images, the kernel for each noise by itself. Five seeds, each with its own draw from the same 10,000 images, noise and initial weights; ± is a 95 % interval over such draws.
#
# *Predictions*, written before the run:
#
# - At $\sigma=1$ the network keeps a larger share of its accuracy than the kernel (the primary claim); the difference is its *lead*.
# - So it does at every level and on *textures*, random images in place of plants; its lead grows with the noise.
# - Without noise the network is ahead, too.

# %% tags=["hide-input"]
# NBVAL_CHECK_OUTPUT
load = functools.partial(kept_runs.load, "local_signal_adaptivity")
kept, textures, longer = (
    [run["values"] for run in load(name)["runs"]]
    for name in ("cifar2", "cifar2-texture", "cifar2-longer")
)
accuracies, shares = measure.cifar2_accuracies(kept), measure.shares_kept(kept)
levels = [*accuracies["network"]]
row = "{:8}" + "{:>12}" * len(levels)
print(row.format("% (kept)", *levels))
two = {arm: accuracies[arm] for arm in ("network", "kernel")}
for arm, found in two.items():
    pairs = ((100 * found[x].mean(), 100 * shares[arm][x].mean()) for x in levels)
    print(row.format(arm, *("{:.1f} ({:.0f})".format(*one) for one in pairs)))
lead = {x: 100 * (shares["network"][x] - shares["kernel"][x]) for x in levels[1:]}
each = (
    "{:.1f} ± {:.1f}".format(*stats.mean_interval(one).plus_minus)
    for one in lead.values()
)
print(row.format("lead", "", *each))

# %% tags=["hide-input"]
figures.show(
    plots.noise(two, dict(zip(levels, levels)), chance=0.6),
    title="In Gaussian noise the kernel loses more than the network",
    alt="Accuracy of the network and of its tangent kernel in five runs over Gaussian noise of six levels and on textures. Both have 88 percent without noise; at the strongest noise the network has 80 and the kernel 74. On textures the kernel has 82 to 84 in all runs, the networks between 60 and 84.",
)

# %% tags=["remove-cell"]
ledger.judge(measure.cifar2_claims(kept))
ledger.judge(measure.cifar2_again_claims(kept, textures, longer))

# %% [markdown]
# The primary claim holds: at $\sigma=1$ the network's lead is 5.6 ± 0.8 points (paper: $98.0-93.1=4.9$), and it leads at every other level of Gaussian noise (5.9 ± 1.6 at 2, paper: 11.3). Its growth from 0.5 to 2, 1.4 ± 1.4, is undecided. *Not as in the paper:* without noise the kernel is ahead by 0.4 ± 0.3 points (0.1 ± 0.4 with longer training). On textures two of five networks hardly trained with the common step size (60 and 67 %; chance is 60 %); a later run with a step size chosen on textures is undecided (1.2 ± 1.8). *Limits:* the loss still fell in the last fifth of training, by 3 to 9 % without noise and 7 to 26 in noise; in a later run with twice as many passes the lead at $\sigma=1$ is 3.8 ± 1.0 points. Half the width costs the kernel 2.2 points; wider kernels were not tried. (On $\sigma$ in the authors' code: [below](#05-kept).)

# %% tags=["remove-cell"]
gaussian = {level: level for level in levels if level != "texture"}
lines = {f"{m} frozen": 1 - errors[m][0].mean() for m in (1, 16, 64)}
lines["linear"] = theory.linear_accuracy(k, sigma)
both = {arm: shares[arm] for arm in two}
figures.show(
    plots.opening(marks, accurate, lines, both, gaussian),
    title="One trained filter beats sixteen frozen; a network keeps more than its kernel",
    alt="Left, the accuracy of one trained filter over steps rises from 0.56 to 0.78, above "
    "dashed lines of the linear classifier, one and sixteen frozen filters, below that of 64. Right, "
    "shares of accuracy kept over noise: the network's falls to 92 percent, that of the kernel to 84.",
    opening=True,
)

# %% [markdown]
# <a id="05-take-home"></a>
# ## What to take home
#
# - In the paper's patch model the noise adds up to about $\log k$ times the signal; a linear filter is right on 56 % of the points at $k=1000$.
# - In the paper's patch model gradient descent on one filter and one slowly moving bias first turns the filter to the signal and then raises the threshold, because noise that passes pushes the bias down.
# - For a filter along the signal only the ratio of the threshold to its response counts: at $k=1000$ accuracy rises from 0.56 at ratio 0 to 0.997 at 0.8.
# - In dimension $1/\sigma^2$ a fixed number of frozen random filters nearly always errs on at least 10 % of the points for large $k$. At $k=1000$ one trained filter (error 0.21 after 10,000 steps) beats 16 frozen ones with a common threshold, on average, and loses to 64.
# - On CIFAR animals and vehicles in Gaussian noise of $\sigma=1$, a small network keeps 97.9 % of its accuracy, the tangent kernel of a wider one 92.3 % (paper: 98.0 and 93.1); without noise it is not ahead.
#
# Headlines ([all claims](#05-held-up)):
#
# ```{headlines}
# ```
#
# **Confirmed**, in our runs: the two stages, on the predicted path ($k=1000$), and the lead in Gaussian noise on CIFAR. **Not confirmed:** a lead without noise.
#
# <a id="05-try"></a>
# ## Try it
#
# :::{exercise}
# :label: ex-05-linear
#
# By hand: for which $\sigma$ is the linear classifier right on 99 % of the points at $k=1000$? How well does it do at $\sigma=1/\sqrt k$?
# :::
#
# :::{solution} ex-05-linear
# :class: dropdown
#
# $\Phi(1/(\sigma\sqrt k))=0.99$ needs $\sigma\sqrt k=1/2.33$, so $\sigma=0.0136$. At $\sigma=1/\sqrt k$ the sum of the noise has standard deviation 1 for every $k$, and the linear classifier is right with probability $\Phi(1)=0.84$. The factor $\log k$ makes the linear classifier useless for large $k$. The largest of $k$ noise numbers, about $\sigma\sqrt{2\log k}$, still tends to 0, so a threshold separates.
# :::
#
# :::{exercise}
# :label: ex-05-run
#
# Rerun the chapter with four times as many training steps. Which rivals does the trained filter beat now?
# :::
#
# :::{solution} ex-05-run
# :class: dropdown
#
# `mvnb run 05 -p steps=40000`. The ratio reaches 0.52 and the error 0.12: better than sixteen filters with oracle thresholds (0.17), still behind 64 with a common one (0.10).
# :::

# %% [markdown]
# <a id="05-record"></a>
# ## The record
#
# For those who check: all proofs, exact formulas, the checks against points, further experiments and everything that was judged, in sections that can be read in any order. (Cells that record claims are in the notebook, but not on the site.)
#
# <a id="05-gradient"></a>
# ### The mean gradient and the accuracy, exactly
#
# *Supports the explorer and the predicted path: closed forms of the forces and of the accuracy, all ours; the paper bounds the forces.* {prf:ref}`prop-05-gradient` has the case $b\le0<c+b$. In general the signal's term $\mathbb E\,\varsigma(-g+S)$ has the factor $\mathbb 1[c\ge-b]+\mathbb 1[c\le b]$ along $\mathbf w_*$ and the factor $\mathbb 1[c\ge-b]-\mathbb 1[c\le b]$ in $b$, and $\mathcal N_{\mathbf w}$ has $\mathbb 1[Z_i\ge-b]$; the proof is the same. For $b>0$ the bound of {prf:ref}`lem-05-growth` on $\mathcal N_{\mathbf w}$ is $ks^2$, since $|S_i|\le2|Z_i|$.
#
# :::{prf:theorem} The gradient as an integral
# :label: thm-05-integral
#
# Let $\chi(u)=\mathbb E\,e^{iuS_1}$, a real and even function. Then
#
# $$
# \begin{aligned}
# \mathbb E\,\varsigma(x+S)&=\frac12+\int_0^\infty\frac{\sin(ux)\,\chi(u)^k}{\sinh\pi u}\,du,\\
# \mathcal N_{\mathbf w}&=k\int_0^\infty\frac{2\cos(ug)\,\chi(u)^{k-1}}{\sinh\pi u}\,M(u)\,du,\\
# M(u)&=\mathbb E\bigl[Z\sin(uS_1)\,\mathbb 1[Z\ge-b]\bigr],
# \end{aligned}
# $$ (eq-05-integral)
#
# and $\mathcal N_b$ is the second integral with $\mathbb E[\sin(uS_1)\,\mathbb 1[Z\ge|b|]]$ for $M(u)$. For $b\le0$, with $\alpha=|b|/s$ and Faddeeva's function $w(z)=e^{-z^2}\mathrm{erfc}(-iz)$,
#
# $$
# \begin{aligned}
# I(u)&=\tfrac12e^{-\alpha^2/2}\,w\Bigl(\frac{us+i\alpha}{\sqrt2}\Bigr),\\
# \chi(u)&=1-2\Phi(-\alpha)+2\,\mathrm{Re}\,I(u),\\
# M(u)&=s^2u\,\mathrm{Re}\,I(u),\\
# \mathbb E[\sin(uS_1)\mathbb 1]&=\mathrm{Im}\,I(u).
# \end{aligned}
# $$ (eq-05-faddeeva)
# :::
#
# :::{prf:proof}
# *The logistic function as an integral of sines.* $\varsigma(x)=\frac12+\frac12\tanh\frac x2$ and $\frac12\tanh\frac x2=\int_0^\infty\frac{\sin ux}{\sinh\pi u}\,du$. Put $x+S$ in the place of $x$; $\mathbb E\sin(u(x+S))=\sin(ux)\,\chi(u)^k$ because $S$ is symmetric.
#
# *Differences.* $\sin(u(S_{-i}-g+S_i))-\sin(u(S_{-i}-g-S_i))=2\cos(u(S_{-i}-g))\sin(uS_i)$, whose mean over $S_{-i}$ is $2\cos(ug)\,\chi(u)^{k-1}\sin(uS_i)$.
#
# *One response.* $I(u)=\int_{|b|}^\infty e^{iu(z-|b|)}\varphi(z/s)\frac{dz}s$ is the integral representation of $w$. Stein's identity $\mathbb E[Z\,h(Z)]=s^2\,\mathbb E\,h'(Z)$, on the half-line where the boundary term vanishes with $\sin0$, gives $M$. ($b>0$ is handled in two pieces.)
# :::
#
# By inversion of $\chi(u)^k$ the accuracy
#
# $$
# \Pr[yf>0]=\Pr[S<g]
# $$ (eq-05-accuracy)
#
# is an integral, too, so accuracies in this chapter have no sampling error. Tests compare both with drawn points and with quadrature. Checks of the paper's lemmas on a grid of $(c,b)$ follow in the ledger: the noise part has the sign of $c$ and stays below the bound, the filter grows while it is small, $\partial_b$ changes its sign once along $b=0$ and is negative at ratio 0.9. At the very start the gradient is $-\frac12$ along $\mathbf w_*$ and in $b$, so the bias first *rises*, but $b/c$ stays below $1/k$.

# %% tags=["remove-cell"]
ledger.judge(measure.force_claims(k))
first = theory.population_path(40, k, sigma, step_size, 1 / k)
ledger.judge(measure.first_steps_claims(first, k))

# %% [markdown]
# <a id="05-proofs"></a>
# ### Proofs: the bias falls, and Theorem 3.1
#
# *Supports {prf:ref}`lem-05-fall` and {prf:ref}`thm-05-upper`.*
#
# :::{prf:lemma} While the network errs, some noise survives (Lemma B.9)
# :label: lem-05-survive
#
# Let $b\le0<c$, $c+b\ge\frac12c$ and $v\le c$. If the network errs with probability at least $0.01$, then $\Pr[S_i\ne0]\ge C\,k^{-3/4}$ for large $k$, and
#
# $$
# \mathbb E|S_i|\ \ge\ \sqrt{\tfrac12\Pr[S_i\ne0]\;\mathrm{Var}\,S_i}.
# $$ (eq-05-overshoot)
# :::
#
# :::{prf:proof}
# *Many survivors.* Up to a probability of $2/k$, all $|Z_i|\le2s\sqrt{\log k}$ (Lemmas B.1 and B.2, by the union bound). An error needs $|S|\ge c+b\ge\frac12c$, hence at least $c/(4s\sqrt{\log k})\ge\sqrt k/(4\sqrt2\log^{3/2}k)\ge k^{1/4}$ survivors. If this has probability at least $0.01-2/k\ge0.005$, Markov's inequality gives $k\Pr[S_i\ne0]\ge0.005\,k^{1/4}$.
#
# *The overshoot.* Given that it survives, $|S_i|$ is the overshoot of a Gaussian over a level, which has an increasing failure rate; so its second moment is at most twice the square of its mean $\mu$. With $P=\Pr[S_i\ne0]$: $\mathbb E|S_i|=P\mu$ and $\mathrm{Var}\,S_i\le2P\mu^2$.
# :::
#
# :::{prf:lemma} The bias falls (Lemma 3.3)
# :label: lem-05-fall
#
# For large $k$: while the network errs with probability at least $0.01$, $b\le0<c+b$, $v\le c$ and $c\ge C_2/\log^4k$, the derivative $\partial_b\mathbb E\ell$ exceeds a positive constant.
# :::
#
# :::{prf:proof}
# *Of {prf:ref}`lem-05-fall`.*
#
# *Quoted:* $c\le C$ (Lemma B.7); $|S|<c+b+10$ with probability at least $\frac45$ (Lemma B.8); $\mathrm{Var}\,S_i\ge\beta(c+b)^2/k$ (Corollary B.1). The first two say that the loss never exceeds 1, while a large $|S|$ half of the time would; the third is Bernstein's inequality: with less variance the network would not err with probability $0.01$.
#
# *There is room.* By {prf:ref}`lem-05-enough`, $|b|\le2s\sqrt{\log k}\le2\sqrt2\,c\,\sigma\sqrt{\log k}$, which is below $\frac12c$ for large $k$. So {prf:ref}`lem-05-survive` applies.
#
# *The push.* The event $|S_{-i}|\le C+11$ has a constant probability by Lemma B.8, since $|S_{-i}|\le|S|+|S_i|$, and is independent of $S_i$. On it, and where $S_i\le1$, $D_i$ is at least $2S_i$ times the least slope of $\varsigma$ on $[-2C-12,2C+12]$, a constant. Therefore $\mathcal N_b\ge D\,k\,\mathbb E|S_i|$, which by {eq}`eq-05-overshoot` and Corollary B.1 is at least $D'k\cdot k^{-3/8}\cdot c\,k^{-1/2}=D'c\,k^{1/8}$. This grows with $k$, since $c\ge C_2/\log^4k$; the signal's part is at most 1.
# :::
#
# :::{prf:proof}
# *Of {prf:ref}`thm-05-upper`.*
#
# *Quoted:* the small start (Lemma B.3) and the closeness of batch and mean gradients (Lemma B.4: truncate the noise and use Hoeffding's inequality).
#
# *Filter.* By {prf:ref}`lem-05-growth`, $c$ grows by at least $\eta A$ a step, with a constant $A$, until it reaches $2C_2/\log^4k$, and does not fall below $C_2/\log^4k$ afterwards: $T_1=(\frac{2C_2}{\log^4k}+\delta)\frac1{\eta A}$ steps, $\delta$ being the size of the start. Meanwhile $v\le2\delta$, so that $s\le2c\sigma$, and $b$ has risen to no more than $O(\frac1k)$.
#
# *Bias.* By {prf:ref}`lem-05-fall`, $b$ now falls by at least $\eta_bC$ a step, $\eta_b=\eta/k$, as long as the error is $0.01$ or more. (While $b$ is still positive, $b=O(\frac1k)$ is far below $s$, half of the noise patches have $Z_i\ge b$ up to $o(1)$, and $\mathcal N_b$ is larger still, of the order $ks$.) As $c\le C_3$ (Lemma B.7), after another $T_2=\bigl(4C_3\frac{\log^{3/2}k}{\sqrt k}+O(\tfrac1k)\bigr)\frac1{\eta_bC}$ steps $|b|$ would exceed $4C_3\sigma\sqrt{\log k}\ge2s\sqrt{\log k}$, and by {prf:ref}`lem-05-enough` the error would be below $2/k$; up to then $c+b>0$, since $c\ge C_2/\log^4k$ is far above such a $|b|$. So the error falls below $0.01$ at some step before that.
# :::
#
# <a id="05-frozen"></a>
# ### Frozen filters: the formula for any number of them
#
# *Supports the rivals of the lesson.* For $m$ filters $\mathrm{SNR}^2=\mu^\top\Sigma^{-1}\mu$, where $\mu$ has the blocks $\mathbf w_*\mathbb 1[|a_j|\ge\tau_j]$ and $\Sigma$ the blocks $k\,\mathbb E[\epsilon\epsilon^\top\mathbb 1_j\mathbb 1_l]$, $\epsilon$ being one noise patch and $\mathbb 1_j=\mathbb 1[|\langle\mathbf w^{(0)}_j,\epsilon\rangle|\ge\tau_j]$; the weights $\Sigma^{-1}\mu$ are the best. The blocks depend on pairs of filters through one angle and are computed by quadrature. Here the weights are applied to points: the formula is the Gaussian idealisation, the measured error is not.

# %% tags=["hide-input"]
# NBVAL_CHECK_OUTPUT
pairs = []  # (draw, number of filters, 2): measured, formula
for r in range(4):
    rows = []
    for m, t in ((1, 0.0), (4, 0.2), (16, 0.5), (64, 1.0)):
        filters = theory.random_filters(m, kernel_d, [seed, m, r])
        bars = np.full(m, t)
        rows.append(
            measure.drawn_error(filters, bars, k, sigma, seed + r, kernel_points)
        )
    pairs.append(rows)
pairs = np.array(pairs)
print("frozen filters:", [1, 4, 16, 64])
print(
    "measured:", pairs.mean(0)[:, 0].round(1), " formula:", pairs.mean(0)[:, 1].round(1)
)

# %% tags=["remove-cell"]
ledger.judge(measure.formula_claims(pairs))

# %% [markdown]
# Measured errors agree with the formula within some hundredths. (Weights for 256 filters are computed in single precision, and with one common threshold, $1.5\sigma$.)
#
# <a id="05-lower"></a>
# ### The lower bound: proof, and where it begins
#
# *Supports {prf:ref}`thm-05-lower`.*
#
# :::{prf:proof}
# *Of {prf:ref}`thm-05-lower`.*
#
# *Quoted:* Erdős' bound, Lemma B.10. If $|a_i|\ge1$ and $\xi_i$ are $n$ independent signs, $\sum_ia_i\xi_i$ lies in a given interval of length $2\Delta$ with probability $O((1+\Delta)/\sqrt n)$. Let $G(x)=\sum_j\langle\mathbf w_j,x\rangle\mathbb 1[|\langle\mathbf w_j^{(0)},x\rangle|\ge\tau_j]$, an odd function; the output is $G(y\mathbf w_*)+\sum_iG(\epsilon_i)$ with independent symmetric summands. If $G(\mathbf w_*)\le0$ the error is at least $\frac12$. Otherwise:
#
# *A noise patch matters as much as $\sigma$ times the signal, with constant probability.* With probability $0.999$ all $|a_j|$ lie between constant multiples of $1/\sqrt d$, and the filters are orthogonal up to $O(1/\sqrt d)$. The projections of $\epsilon$ on them are then nearly independent and of scale $\sigma=1/\sqrt d$, too. So with some constant probability $q$, $\epsilon$ activates exactly the filters that $\mathbf w_*$ activates. There $G(\epsilon)=\langle\mathbf u,\epsilon\rangle$ and $G(\mathbf w_*)=\langle\mathbf u,\mathbf w_*\rangle$ with one vector $\mathbf u$, and $|\langle\mathbf u,\epsilon\rangle|\ge C'\sigma\|\mathbf u\|\ge C'\sigma|G(\mathbf w_*)|$ with probability at least $1-\frac q2$ for a constant $C'$ that depends on $q$ alone. Altogether the event has probability at least $p=q/2$, for all weights and biases.
#
# *Many such patches do not cancel.* At least $\frac12kp$ of the noise patches are of this kind, up to an exponentially small probability (Chernoff); call their set $I^+$. Given their sizes, their signs are independent, so that by Erdős' bound $|\sum_{I^+}G(\epsilon_i)|<G(\mathbf w_*)$ has probability $O\bigl(\frac1{\sigma\sqrt{kp}}\bigr)=O\bigl(\frac1{\log k}\bigr)$.
#
# *Symmetry, twice.* With probability at least $\frac12(1-O(\frac1{\log k}))$ the sum over $I^+$ opposes the signal and outweighs it; independently, with probability at least $\frac12$, the other noise patches do not help. The error is at least $\frac14(1-O(\frac1{\log k}))$.
# :::
#
# *Where it begins.* With one filter the best threshold is $t=\sqrt d|a|$, for large $d$ the size of a standard normal variable. By {eq}`eq-05-snr` the error is below 0.1 if $2\Phi(-t)<1/(1.64\log^2k)$, roughly, which has just that probability for large $d$ (at $k=1000$, $d=21$ the full formula asks for 0.009, and the exact law of $a$ gives 0.006). It falls below 0.001 at $\log^2k=609$, $k\approx5\cdot10^{10}$. Mean errors with the best common threshold:

# %% tags=["hide-input"]
# NBVAL_CHECK_OUTPUT
exponents, few = (3, 6, 12, 24), min(kernel_draws, 12)
sizes = [(10.0**e, theory.noise_scale(10.0**e) ** -2) for e in exponents]
frozen = functools.partial(measure.frozen_errors, seed=seed)
scan = {m: np.array([frozen(m, few, *one)[0] for one in sizes]) for m in (1, 4)}
known = {m: frozen(m, 3 * kernel_draws, *sizes[-1], common=(0.0,))[1] for m in (1, 4)}
for m, one in scan.items():
    print(f"{m} frozen, k = 1e3, 1e6, 1e12, 1e24:", one.mean(1).round(2))

# %% tags=["remove-cell"]
ledger.judge(measure.limit_claims(scan, exponents, known))

# %% [markdown]
# Errors approach $\frac12$ at the rate $1/\log k$. With oracle thresholds, too, the error is at least 0.1 at $k=10^{24}$ in (nearly) all draws. The paper's remark that the linear classifier fails with probability 0.49 is true from $k\approx2\cdot10^{17}$ on.
#
# <a id="05-survivors"></a>
# <a id="a-shortcut-that-changes-nothing"></a>
# ### Drawing only the noise that passes
#
# *Supports the run of Figure 3.3: it draws from the same law as the paper's, a thousand times faster at its end.*
#
# :::{prf:proposition} Only survivors matter
# :label: prop-05-survivors
#
# Let $b\le0$ and $\hat{\mathbf w}=\mathbf w/\|\mathbf w\|$. The noise patches of a point contribute to $f$ and to {eq}`eq-05-gradient` as follows, in law: a binomial number $N$ of them, with success probability $2\Phi(-|b|/s)$, survives; each has a projection $Z_i$ on $\mathbf w$ that is $\mathcal N(0,s^2)$ given $|Z_i|>|b|$; their sum orthogonal to $\mathbf w$ is $\mathcal N(0,N\sigma^2(I-\hat{\mathbf w}\hat{\mathbf w}^\top))$, independent of everything else given $N$.
# :::
#
# :::{prf:proof}
# Whether a patch survives depends on $\langle\mathbf w,X_i\rangle$ alone, and the component of a spherical Gaussian orthogonal to $\mathbf w$ is independent of that along $\mathbf w$. Sums of independent Gaussians are Gaussian.
# :::
#
# Over a batch of $n$ points the orthogonal parts add up to *one* Gaussian vector, with variance $\sigma^2\frac1{n^2}\sum\varsigma(-yf)^2N$. For $b>0$ all patches count, some of them twice. Tests compare means, spreads and quantiles with those of all patches drawn.
#
# <a id="05-small"></a>
# <a id="small-and-fast"></a>
# ### A smaller world, and a step that is too large
#
# *Supports the condition of {prf:ref}`lem-05-enough`: descent reaches an error below 0.01, and a step that is too large silences every unit for good.* Here $k=200$, $\sigma=0.2$ and $d=1$, so only $c$ and $b$ move; the bias has $\frac1{20}$ of the filter's step. *Prediction:* if a step throws the bias below $-c$ and below all noise, the output is 0 on all points, which counts as an error, and so is the gradient.

# %% tags=["hide-input"]
small, ends = 0.2, []
for eta in (fast_step, trap_step):
    objective = arms.SurvivorObjective(fast_noise, small, batch)
    start = arms.filter_start(seed, fast_replicas, 1)
    start["w"] = start["w"].abs()
    keys = arms.step_keys(seed + 10_000, fast_replicas)
    marks_here = training.log_steps(fast_steps, 2)
    run = arms.train_filters(
        objective, keys, start, fast_steps, eta, 1 / 20, marks_here
    )
    ends.append(measure.accuracy(run["c"][-1], run["b"][-1], fast_noise, small))
    print(f"step {eta:g}: accuracies from {ends[-1].min():.3f} to {ends[-1].max():.3f}")
print(f"linear classifier: {theory.linear_accuracy(fast_noise, small):.3f}")

# %% tags=["remove-cell"]
ledger.judge(measure.small_world_claims(*ends))

# %% [markdown]
# Both come out. (At a step of 1, in earlier runs, half to three quarters of the runs fell silent, depending on their first batches.)
#
# <a id="05-kept"></a>
# <a id="05-quoted"></a>
# <a id="the-papers-numbers"></a>
# ### The paper's Table B.1, and the set-up of our test
#
# *Supports [our test](#05-images).* Test accuracy in percent on animals against vehicles, with Gaussian noise of standard deviation 0 / 0.5 / 1 / 2 as printed, by placement (quoted; each number seems to be one run):
#
# | Size | Model | random location | random corner | fixed corner |
# |---|---|---|---|---|
# | 16 on 32 | WideResNet | 94.7 / 94.0 / 92.8 / 91.7 | 94.3 / 94.2 / 92.7 / 92.6 | 94.4 / 94.3 / 94.0 / 92.9 |
# | 16 on 32 | tangent kernel | 89.9 / 87.3 / 83.7 / 76.9 | 91.6 / 88.3 / 84.5 / 78.3 | 92.0 / 88.8 / 85.2 / 80.0 |
# | 32 on 64 | WideResNet | 96.1 / 96.2 / 95.8 / 94.9 | 96.5 / 96.5 / 96.5 / 95.9 | 96.9 / 96.6 / 96.0 / 95.6 |
# | 32 on 64 | tangent kernel | 91.2 / 89.4 / 84.6 / 82.2 | 91.8 / 89.1 / 85.3 / 79.1 | 93.1 / 91.0 / 88.3 / 82.9 |

# %% tags=["hide-input"]
kept_runs.show("local_signal_adaptivity", "cifar2")
tuned = []
for name in ("cifar2-tuning", "cifar2-tuning-finer"):
    kept_runs.show("local_signal_adaptivity", name, setup=False)
    tuned += [run["values"] for run in load(name)["runs"]]
kept_runs.show("local_signal_adaptivity", "cifar2-texture")
kept_runs.show("local_signal_adaptivity", "cifar2-longer")
kept_runs.show("local_signal_adaptivity", "cifar2-texture-tuning", setup=False)
print("step size of the network, ridges of the kernel:", measure.cifar2_choices(*tuned))

# %% [markdown]
# *Two readings of the noise.* The authors' released code multiplies the noise by $\sigma$ twice, so that printed 0.5, 1 and 2 are standard deviations of 0.25, 1 and 4; which of them the table shows is not said. The shares that our network keeps are 1.0 ± 0.6 points from Table B.1 with the printed values and 2.1 ± 0.4 with the squares, those of our kernel 2.3 ± 0.3 and 1.1 ± 0.5: neither reading fits both better.
#
# *Accuracy.* In plain accuracy, too, the network is ahead in all Gaussian noise, by 2.6 to 6.4 points.
#
# *Training.* On training images the network is right on 88 % (no noise) to 96 % ($\sigma=4$), the kernel on 89 to 97 %. On textures, for which no step size had been tried, the networks of two seeds reach 60 and 67 %, in training and test. With the best step size for textures, in a run declared after this result, the network is right on 84.3 % and keeps 96.2 % of its accuracy, the kernel 95.0 %. At $\sigma=4$ alone a step of 0.1, the largest, would be better for the network. With 30 passes, again declared afterwards, the network is right on all training images at $\sigma=1$ (its loss still falls), on 84.6 % of the test images, and keeps 96.1 % of its accuracy: stopping early is part of its lead. A kernel of still greater width may come closer than ours.
#
# <a id="05-digits"></a>
# <a id="experiment-iv-images-on-noise-network-against-tangent-kernel"></a>
# ### The same on digits, live
#
# *Supports [our test](#05-images): the script of the kept run, on data that every machine has.* Digits of $8\times8$ pixels at random places of $16\times16$; two classes (0, 1, 8, 9 and the others). *Textures* have a $1/f$ spectrum, as photographs have. Gaussian noise of 0.5 on a digit, whose norm is 3.9, has the ratio of signal to noise of $\sigma=2$ on a CIFAR image. The kernel's ridge is 0.001 throughout; on one seed the best of six gains it 0.02, far less than its distance from the network.

# %% tags=["hide-input"]
arm = {"step_sizes": [image_step], "ridges": [ridge], "narrow": []}
worlds = {"0": 0.0, "gaussian": gaussian_noise, "texture": 1.0}
for name, level in worlds.items():
    background = "texture" if name == "texture" else "Gaussian"
    worlds[name] = arm | {"background": background, "level": level}
network = {"width": image_width, "passes": image_epochs, "batch": image_batch}
sizes = {"n_train": n_train, "n_test": n_test, "side": image_side, "judged": "test"}
run = kept_runs.declared("local_signal_adaptivity")["cifar2"]
own = {"dataset": dataset, "images": sizes, "worlds": worlds, "network": network}
run = dataclasses.replace(run, parameters=own | {"kernel": 2 * image_width})
with tempfile.TemporaryDirectory() as folder:
    seeds = range(seed, seed + image_replicas)
    digits = [run.call("run", r, device, Path(folder) / f"{r}") for r in seeds]
for arm, found in measure.cifar2_accuracies(digits).items():
    print(arm, *(f"{name}: {100 * one.mean():.0f} %" for name, one in found.items()))

# %% tags=["remove-cell"]
ledger.judge(measure.digits_claims(digits))

# %% [markdown]
# On both backgrounds the network keeps a larger share of its accuracy.
#
# <a id="05-recipe"></a>
# ### In your own training loop
#
# *A filter with a learned threshold in PyTorch, with nothing of this book's machinery. A test trains it on patches with weak noise.* The bias has a slower step of its own; with the same step as the filter it overshoots and every unit falls silent.

# %% tags=["remove-input"]
figures.show_code(recipe)

# %% [markdown]
# <a id="05-held-up"></a>
# ### All claims
#
# Closed forms and gradients are checked by tests besides. The functions that compute what is judged:

# %% tags=["hide-cell"]
figures.show_code(measure)

# %%
# NBVAL_CHECK_OUTPUT
ledger.show()

# %% [markdown]
# **Wrong or incomplete in the paper** ([errata](../book/errata.md)): $\sigma=1$ in Figure 3.3; the missing condition of Lemma B.5; that $b$ falls throughout; the order of quantifiers in Lemmas B.11 and B.12.
#
# **Not confirmed** on CIFAR-2, in small networks: without noise the network is not ahead of the kernel. **Undecided:** textures, with either step size, and whether the lead grows with the noise.
#
# **Open.** Whether the two stages survive when several filters and the output weights are trained; noise stronger than $\log k/\sqrt k$; a lower bound for all kernels rather than this one.
#
# **Changed after results were seen.** The runs `cifar2-texture` and `cifar2-longer` were declared after the run `cifar2`: its step size is too large for textures, and its loss was still falling. The step that is too large was set to 1.5 after a step of 1 had killed half to three quarters of the runs. Settings of the digits were chosen on the seeds 0 to 2. Further changes are listed in `CHANGELOG.md`.
#
# <a id="05-not-run"></a>
# ### Not run here
#
# | What the paper has | Why not by default | What runs it |
# |---|---|---|
# | Figure 3.3 with every patch drawn | $5\cdot10^{10}$ Gaussians per run; the same in law by {prf:ref}`prop-05-survivors` | `mvnb run 05 -p sampler=dense -p replicas=2` |
# | Figure 3.4 and Table 3.1: plants, ten classes, vehicles among animals | the plants are not published; a WideResNet takes 2 to 10 hours per run | not offered; textures for two classes in the [test](#05-images) |
# | The kept run on CIFAR-2 | about half an hour of one CPU core | `mvnb keep 05 NAME` with `cifar2`, `cifar2-tuning`, `cifar2-tuning-finer`, `cifar2-texture`, `cifar2-texture-tuning`, `cifar2-longer` |
# | Table B.1: corners, and 32 pixels on 64 | one placement and size | not offered |
# | Figure 3.1, photographs with local objects | ImageNet may not be passed on | not offered |
# | Figure 3.2, activity during training on CIFAR-10 | hours | not offered |
# | Finite and infinite kernels on MNIST (conference version) | not in the thesis | the finite one: `mvnb run 05 -p dataset=mnist -p image_side=14` |
#
# `mvnb run 05 --preset paper` runs all of the chapter at sizes for a large GPU.
#
# <a id="05-exercises"></a>
# ### More exercises
#
# :::{exercise}
# :label: ex-05-balance
#
# By hand: at $b=0$, for small $c$ and $v=0$, show that $\nabla_{\mathbf w}\mathbb E\ell\cdot\mathbf w_*\approx-\frac12+\frac c4(1+k\sigma^2)$ and $\partial_b\mathbb E\ell\approx-\frac12+\frac{k\sigma c}{2\sqrt{2\pi}}$. At which $c$ does the bias turn, and has the filter stopped growing by then?
# :::
#
# :::{solution} ex-05-balance
# :class: dropdown
#
# For small arguments $\varsigma(x)\approx\frac12+\frac x4$. In {eq}`eq-05-noise` $D_i\approx\frac12S_i=\frac12Z_i$, so that $\mathcal N_{\mathbf w}=\frac k2\cdot\frac12s^2=\frac k4c^2\sigma^2$, times $1/c$; and $\mathcal N_b=\frac k2\,\mathbb E[Z_i\mathbb 1[Z_i\ge0]]=\frac{ks}{2\sqrt{2\pi}}$. The signal part is $-\mathbb E\,\varsigma(-c+S)\approx-\frac12+\frac c4$. The bias turns at $c=\sqrt{2\pi}/(k\sigma)$, $0.011$ at $k=1000$; the filter would stop only near $c=2/(1+\log^2k)=0.04$. So it is still growing.
# :::
#
# <a id="05-further"></a>
# ### Further reading
#
# - The conference version of the paper ([Karp et al., 2021](../book/references.bib#karp2021local)), with an experiment on MNIST and infinite kernels.
# - The tangent kernel ([Jacot et al., 2018](../book/references.bib#jacot2018neural)), its convolutional form for finite networks ([Arora et al., 2019](../book/references.bib#arora2019exact)), and when training is lazy, that is, linear ([Chizat et al., 2019](../book/references.bib#chizat2019lazy)).
# - The protocol of the image experiments follows [Allen-Zhu and Li (2020)](../book/references.bib#allenzhu2020backward); their multi-view data, where patches hold several features, are those of [chapter 1](01_midpoint_mixup.ipynb). There a polynomial activation suppresses small responses from the start; here the network has to learn its threshold.
# - In [chapter 2](02_fine_grained_labels.ipynb), too, a falling bias keeps noise out, but by a rule of the authors and not by a gradient.
# - Lower bounds for fixed features that average over labels and not over inputs: {prf:ref}`thm-08-fixed` and [chapter 9](09_gradient_features.ipynb).
# - Soft thresholding as the way to denoise is older than networks ([Donoho, 1995](../book/references.bib#donoho1995denoising)).
