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
# # Fine-grained labels can teach the rarer feature
#
# > *Why Fine-grained Labels in Pretraining Benefit Generalization?*, Guan Zhe Hong, Yin Cui, Ariel Fuxman, Stanley H. Chan and
# > Enming Luo ([Hong et al., 2024](../book/references.bib#hong2024finegrained)).
#
# In the paper's model of images, a network trained to tell dogs from cats at first learns a feature of all dogs $k$ times as fast as a feature of one of $k$ breeds, because it sees it $k$ times as often. If all images show both on equally many patches, the rare features stay behind by that factor, since learning nearly stops once the shared feature classifies them. (In our runs with random numbers of patches they slowly catch up.) Trained on the breeds instead, the network learns the rare features faster than the shared one. In our runs it then tells dogs from cats where the shared feature is hidden.
#
# <a id="fig-02-contrast"></a>

# %% tags=["remove-input"]
from mvnb import figures

figures.opening()

# %% [markdown]
# Each line is one network, trained on simulated points with *coarse labels* (two superclasses) or *fine labels* (eight subclasses each). The *margin* is the right superclass's output minus the wrong one's, averaged over new points. Hard points hide the shared feature and faintly show the wrong superclass's. Each feature is on exactly four patches.
#
# <a id="02-question"></a>
# ## The question: why would a harder question help?
#
# A network that is to tell dogs from cats can first be trained on breeds, and often works better.
#
# A photograph of a poodle shows a dog's face, the *common* feature, and a poodle's coat, the *fine* feature, on equally many patches. Dogs come in $k=8$ breeds, and so do cats. Let $A_c$ and $A_f$ be how far the detectors of face and coat have grown. Of the pictures with the label "dog" all show the face, one in eight the poodle's coat. All pictures with the label "poodle" show both.
#
# A *hard* photograph shows the coat, hides the dog's face, and shows a cat's face at 0.3 of the strength. A detector responds by its growth times the strength above 0.05. So the photograph is judged right if $0.95\,A_f>0.25\,A_c$: above the dotted line $A_f=A_c/3.8$.
#
# **Predict before you look.** On which side of the dotted line does each training run?

# %% tags=["parameters", "hide-input"]
seed = 0  # first seed: replica r is the run with seed + r (integer, 0 or more)
replicas = 4  # independent runs of every experiment, one stack each (2 or more)
device = "auto"  # "auto", "cpu" or "cuda"
n_subclasses = 8  # subclasses k of each of the two superclasses (4 or more, in fours)
dim = 64  # patch dimension d (10 or more; 2 + 2k or more)
n_patches = 16  # patches per point, P (9 or more)
noise = 0.005  # standard deviation of noise in all coordinates and patches (0 or more)
strong_noise = 0.2  # the same for the strong noise patch of a hard point (0 or more)
distractor_low = 0.25  # weakest distractor of a hard point (below 1, above 1/lambda)
distractor_high = 0.35  # strongest distractor of a hard point (below 1)
bias_lambda = 20  # lambda: a bias falls by its weight's distance / lambda (3 or more)
step_size = 0.008  # gradient step, eta / P in the paper's notation (above 0)
coarse_neurons = 10000  # neurons of each of 2 coarse classes (1 or more; 8 k detectors)
coarse_detectors = 14  # of them, detectors of each feature in the mean (6 or more)
fine_neurons = 2000  # neurons of each of the 2k fine classes (1 or more; 8 k detectors)
fine_detectors = 10  # of them, detectors of each feature in the mean (6 or more)
coarse_steps = 100  # steps under coarse labels (10 or more)
fine_steps = 20  # steps under fine labels (10 or more)
ideal_steps = 300  # steps of the longest run of the idealised network (100 or more)
sweep_steps = 40  # steps of each run of a sweep (10 or more)
dataset = "digits"  # or cifar10, for the image experiment
image_folder = ""  # a folder SUPERCLASS/CLASS/IMAGE to use instead of the data set
image_side = 64  # pixels per side to which the folder's images are scaled (16 or more)
image_network = "mlp"  # two hidden layers; or "resnet34" (the paper's)
n_train = 500  # training images of each run (10 or more; 0: all)
image_epochs = 15  # passes over them, pretraining and tuning (1 or more; the paper: 90)
image_batch = 100  # images per step of pretraining (4 or more; the paper: 4096)
image_step_size = 0.1  # its largest step (above 0; the paper: 0.1 per 256 images)
image_replicas = 6  # runs per kind of label (2 or more; the paper: 6)

# %% tags=["hide-input"]
from dataclasses import replace

import numpy as np
import torch

from mvnb import claims, figures, kept_runs, stats, training
from mvnb.papers.fine_grained_labels import data, measure, model, plots, recipe, theory
from mvnb.papers.fine_grained_labels import training as arms

# %% tags=["hide-input", "check"]
figures.use_style()
ledger = claims.Ledger("fine_grained_labels")
device, seed = training.pick_device(device), training.fold_seed(seed)
print(f"device: {device.type}")
# What may be wrong with the parameters shows here, before anything is trained.
k, rate, weak = n_subclasses, 1 / bias_lambda, (distractor_low, distractor_high)
if k % 4:
    raise ValueError(f"n_subclasses must be a multiple of 4, got {k}")
if not rate < distractor_low <= distractor_high:
    wanted = f"above 1/bias_lambda = {rate:g} and at most distractor_high"
    raise ValueError(f"distractor_low must be {wanted}, got {weak[0]} and {weak[1]}")
if coarse_neurons < 8 * k * coarse_detectors or fine_neurons < 8 * k * fine_detectors:
    wanted = f"8 n_subclasses = {8 * k} times the detectors or more"
    found = f"{coarse_neurons} and {fine_neurons}"
    raise ValueError(f"coarse_neurons and fine_neurons must be {wanted}, got {found}")
image_task = data.load_labelled(dataset, image_network, image_folder, image_side)
noises = {"noise": noise, "strong_noise": strong_noise, "jitter": 0.05}
distractors = {"distractor_low": distractor_low, "distractor_high": distractor_high}
world = data.HierarchicalMultiView(k, dim, n_patches, **noises, **distractors)
# The idealised network has one detector where the others have about 8.
trainer = arms.Trainer(replicas, seed, device, rate, step_size=8 * step_size)

# %% tags=["hide-input"]
s_star, s_dagger = world.signal_patches, world.distractor_patches
alpha = np.sqrt([1 - world.jitter, 1 + world.jitter]).mean()
k_star = theory.critical_subclasses(s_star, alpha, s_dagger, np.mean(weak), rate)
unit = (trainer.step_size, s_star, alpha, rate, k)
figures.show(
    plots.growth_plane(unit, 1 / k_star, marked=(4, 40, 400)),
    title="Under coarse labels the coat stays behind",
    alt="Plane of the growth of the common and of the fine feature. The path under "
    "coarse labels runs along a line of slope one over k, below a dotted "
    "boundary, and slows down; the path under fine labels runs steeply upwards, above "
    "the boundary.",
)

# %% [markdown]
# Coarse labels run along $A_f=A_c/8$, below the dotted line; tenfold time adds about the same step. Fine labels stay above.
#
# <a id="02-world"></a>
# ## The world: features on two levels
#
# :::{prf:definition} Hierarchical multi-view patches (Section 4, Appendix B.1)
# :label: def-02-world
#
# Let $v_+,v_-$ and $v_{\pm,1},\dots,v_{\pm,k}$ be orthonormal in $\mathbb R^d$. A point has $P$ patches $x_p$. An *easy* point of subclass $(+,j)$ has, at random positions,
#
# 1. about $s^*$ *common* patches $x_p=\alpha_pv_++\zeta_p$,
# 2. about $s^*$ *fine* patches $x_p=\alpha_pv_{+,j}+\zeta_p$,
# 3. noise $x_p=\zeta_p$ on all other patches,
#
# with $\alpha_p\in[\sqrt{1-\iota},\sqrt{1+\iota}]$ and $\zeta_p\sim\mathcal N(0,\sigma_\zeta^2I_d)$. In a *hard* point every common patch has become noise, about $s^\dagger$ patches are *distractors* $x_p=\alpha^\dagger_pv_-+\zeta_p$, the other superclass's common feature with small $\alpha^\dagger_p$, and one patch is strong noise $\zeta^*\sim\mathcal N(0,\sigma_{\zeta^*}^2I_d)$. For $(-,j)$ exchange the signs. The coarse label is the sign, the fine label the pair.
# :::
#
# Training sees easy points only, fresh at every step, equally many of each subclass. The paper's numbers of patches are binomial; ours are *exact counts*, $s^*=s^\dagger=4$ in every point, unless we say *binomial*. We take $\iota=0.05$ and $\alpha^\dagger_p\in[0.25,0.35]$.

# %%
counts = {"signal_patches": 2, "distractor_patches": 2}
toy = data.HierarchicalMultiView(2, 8, 12, noise=0.03, strong_noise=0.25, **counts)
easy, hard = (toy.sample(4, seed, hard=hard) for hard in (False, True))
print("patches", tuple(easy.x.shape), "as (point, patch, coordinate)")
print("subclass", easy.subclass.tolist(), " superclass", easy.superclass.tolist())

# %% tags=["hide-input"]
figures.show(
    plots.easy_and_hard(easy, hard),
    title="A hard point hides the common feature and shows the wrong one",
    alt="Two heat maps of coordinates against patches. The easy point has two patches "
    "with the common feature v plus and two with its fine feature; the "
    "hard point has the two fine patches, two faint patches with v minus, and one "
    "patch of strong noise in all coordinates.",
)

# %% [markdown]
# <a id="02-model"></a>
# <a id="the-model-the-objective-and-a-rule-for-the-biases"></a>
# ## The model, and why it has a bias
#
# Every class $q$, coarse or fine, has its own $m$ ReLU neurons, and all output weights are 1:
#
# $$
# F_q(x)=\sum_{r=1}^{m}\sum_{p=1}^{P}\max\bigl(0,\ \langle w_{q,r},x_p\rangle+b_{q,r}\bigr).
# $$ (eq-02-network)
#
# With $2k$ outputs a network answers coarsely by the larger *max read-out*
#
# $$
# \hat F_\pm(x)=\max_{j\le k}F_{\pm,j}(x).
# $$ (eq-02-max)
#
# Weights start as $w_{q,r}\sim\mathcal N(0,\sigma_0^2I_d)$ with a tiny $\sigma_0$ and descend the cross-entropy of $N$ points with a step $\mu$. With probabilities $p_q(x)=e^{F_q(x)}/\sum_{q'}e^{F_{q'}(x)}$,
#
# $$
# \Delta w_{q,r}=\frac{\mu}{N}\sum_{n=1}^N\bigl(\mathbb 1[y_n=q]-p_q(x_n)\bigr)\sum_{p\,:\,\text{neuron fires}}x_{n,p}.
# $$ (eq-02-update)
#
# The bracket is the *residual*.
#
# *Why a bias?* Without one a neuron fires on half of the noise patches, and with enough of them [noise decides](#02-bias). The threshold must grow: a step $\Delta w$ along a feature changes the response to noise by about $\sigma_\zeta\|\Delta w\|$, that to the feature by about $\|\Delta w\|$. A rise by $\|\Delta w\|/\lambda$ stays between the two if $\sigma_\zeta\ll\frac1\lambda\ll1$, for a fast neuron as for a slow one. From $b=-\sigma_0\theta$, with $\theta$ so large that few neurons fire on any feature, the authors set
#
# $$
# \Delta b_{q,r}=-\|\Delta w_{q,r}\|/\lambda .
# $$ (eq-02-bias)
#
# The paper has $\lambda=\log^5d$, we take 20. In code, $\|\nabla_w\|/\lambda$ stands for the bias's gradient (`superclasses` trains {eq}`eq-02-max`):

# %% tags=["remove-input"]
figures.show_code(model.ReluPatchObjective.__call__)

# %% [markdown]
# A neuron that fires at the start on one feature only is a *detector* of it, and by {eq}`eq-02-bias` it [stays one](#02-bias). In the *idealised network* every class has $n_c$ detectors of each common and $n_f$ of each fine feature, counts are exact, noise is absent, and coefficients have their mean $\bar\alpha$. A detector that has *grown* by $A$ responds to a patch with coefficient $a$ by
#
# $$
# \bigl(a-\tfrac1\lambda\bigr)A .
# $$ (eq-02-response)
#
# <a id="02-derivation"></a>
# <a id="the-derivation-ii-the-first-step-already-knows"></a>
# ## The derivation, I: one growth law for all features
#
# A detector's growth is a frequency times a mean residual.
#
# :::{prf:proposition} The growth law
# :label: prop-02-drift
#
# In the idealised network a step on the expected loss moves the detectors of feature $u$ of class $q$, as long as they fire, by
#
# $$
# \begin{aligned}
# \Delta A_{q,u}={}&\mu\,s^*\bar\alpha\;\Pr[u]\\
# &\times\bigl(\Pr[y=q\mid u]-\mathbb E[p_q(x)\mid u]\bigr),
# \end{aligned}
# $$ (eq-02-drift)
#
# where $\Pr[u]$ is the probability that a point shows $u$: $\frac12$ for a common and $\frac1{2k}$ for a fine feature.
# :::
#
# :::{prf:proof}
# In {eq}`eq-02-update` a detector collects $\bar\alpha u$ from each of $s^*$ patches of a point that shows $u$, times $1-p_q$ if the label is $q$ and $-p_q$ if not.
# :::
#
# At the start all $G$ labels have $p_q=1/G$:
#
# :::{prf:corollary} Growth ratios
# :label: cor-02-ratio
#
# Let all labels be equally frequent, and let $\varrho$ be the first growth of a class's common over that of its own fine detectors.
#
# 1. If the $k$ subclasses of each superclass form $g$ equal groups, the labels, then $\varrho=\dfrac{k}{2g-1}$: $k$ for coarse labels ($g=1$), $\dfrac k{2k-1}\approx\frac12$ for fine labels ($g=k$).
# 2. If every point gets one of $C$ random IDs inside its superclass, then $\varrho=k$ for every $C$.
# :::
#
# :::{prf:proof}
# (1) $G=2g$, $\Pr[y=q\mid v_\pm]=\frac1g$, $\Pr[y=q\mid v_{\pm,j}]=1$: growth is proportional to $\frac12(\frac1g-\frac1{2g})=\frac1{4g}$ and $\frac1{2k}(1-\frac1{2g})=\frac{2g-1}{4gk}$. (2) $G=2C$, both conditional probabilities are $\frac1C$, only the frequencies $\frac12$ and $\frac1{2k}$ differ.
# :::
#
# The paper has $g=1$ to leading order, a range for $g=k$.
#
# <a id="02-coarse"></a>
# <a id="the-derivation-iii-coarse-labels-and-why-the-imbalance-freezes"></a>
# ## The derivation, II: which feature stops the growth
#
# By {eq}`eq-02-response` the right output at an easy point is
#
# $$
# F=\gamma\,(n_cA_c+n_fA_f),\quad \gamma=s^*\bigl(\bar\alpha-\tfrac1\lambda\bigr).
# $$ (eq-02-output)
#
# :::{prf:theorem} Coarse labels: the log law
# :label: thm-02-log
#
# Under the gradient flow of the idealised coarse network, from $A_c=A_f=0$ and as $\sigma_0\to0$,
#
# $$
# \begin{gathered}
# A_c=k\,A_f\ \text{ for all times},\\
# F+e^F=1+\kappa t,\\
# \kappa=\frac{\mu s^*\bar\alpha}2\,\gamma\,\Bigl(n_c+\frac{n_f}k\Bigr).
# \end{gathered}
# $$ (eq-02-log)
#
# Hence $F\le\log(1+\kappa t)$, and $F=\log\kappa t+o(1)$ as $t\to\infty$.
# :::
#
# :::{prf:proof}
# Both features feel the same residual.
#
# *One residual.* Detectors of foreign features are pushed down and fall silent, so the other output is 0. All points look alike, with residual $\rho=1-p_y=1/(1+e^F)$. By {eq}`eq-02-drift`, $\dot A_c=\frac12\mu s^*\bar\alpha\,\rho$ and $\dot A_f=\dot A_c/k$.
#
# *One equation.* Therefore $\dot F=\kappa\rho$, and $(1+e^F)\dot F=\kappa$ integrates to {eq}`eq-02-log`. Since $F\ge0$, $e^F\le1+\kappa t$. So $F=o(\kappa t)$, and $F=\log(1+\kappa t-F)=\log\kappa t+o(1)$.
# :::
#
# Both features share *one clock*, $\int\rho\,dt$; the common one stops it. On a hard point only the fine part of $F$ supports the truth:
#
# :::{prf:proposition} Which hard points flip
# :label: prop-02-threshold
#
# Let fine detectors have grown by $A_f$ and common ones by $\varrho A_f$ in all classes, foreign detectors be silent, and all coefficients exceed $1/\lambda$. The idealised network misjudges a hard point exactly when
#
# $$
# n_c\,\varrho\sum_{p\le s^\dagger}\bigl(\alpha_p^\dagger-\tfrac1\lambda\bigr)\ge n_f\sum_{p\le s^*}\bigl(\alpha_p-\tfrac1\lambda\bigr).
# $$ (eq-02-flip)
#
# With mean coefficients this is $\varrho\ge k^*$, where
#
# $$
# k^*=\frac{s^*\,(\bar\alpha-1/\lambda)}{s^\dagger\,(\bar\alpha^\dagger-1/\lambda)}\cdot\frac{n_f}{n_c}.
# $$ (eq-02-kstar)
# :::
#
# :::{prf:proof}
# The right superclass responds to fine patches by $n_fA_f\sum(\alpha_p-\frac1\lambda)$, the wrong one to distractors by $n_c\varrho A_f\sum(\alpha^\dagger_p-\frac1\lambda)$. Ties count as errors.
# :::
#
# In our runs $k^*=3.8$. With exact counts coarse labels have $\varrho=8$ at all times, so they fail on the average hard point. With binomial counts residuals differ between points: {eq}`eq-02-log` fails, and $\varrho$ falls.
#
# <a id="02-fine"></a>
# <a id="the-derivation-v-fine-labels"></a>
# ## The derivation, III: fine labels separate the residuals
#
# Now $G=2k$. At a point let $F_o$ be the output of its own class and $F_s$ that of its siblings; the other superclass's outputs are 0. Write $Z=e^{F_o}+(k-1)e^{F_s}+k$ for the softmax sum.
#
# :::{prf:proposition} The flow under fine labels
# :label: prop-02-fine-flow
#
# Let $k\ge2$. In the idealised network, $F_s=\gamma\,n_cA_c$, $F_o=F_s+\gamma\,n_fA_f$ and
#
# $$
# \begin{aligned}
# \dot A_c&=\frac{\mu s^*\bar\alpha}{2k}\cdot\frac kZ,\\
# \dot A_f&=\frac{\mu s^*\bar\alpha}{2k}\cdot\frac{(k-1)e^{F_s}+k}Z .
# \end{aligned}
# $$ (eq-02-fine)
#
# The ratio $A_c/A_f$ starts at $\frac k{2k-1}$ and falls.
# :::
#
# :::{prf:proof}
# By {eq}`eq-02-drift` fine detectors see their own class only, with residual $1-p_o=1-e^{F_o}/Z$. Common detectors also see the $k-1$ siblings, where the residual is $-p_s=-e^{F_s}/Z$. In sum
#
# $$
# (1-p_o)-(k-1)\,p_s=\frac kZ .
# $$ (eq-02-pushback)
#
# The ratio of the speeds is $k/((k-1)e^{F_s}+k)$, and $F_s$ grows from 0.
# :::
#
# The common feature is driven by $k/Z$, the probability still given to the *wrong superclass*, the fine one by the whole error $1-p_o$. Since $\varrho\le\frac k{2k-1}<1$ at all times, hard points are judged right if distractors are weaker than signals ($s^\dagger=s^*$, $n_c=n_f$).
#
# <a id="02-theorems"></a>
# ## What the paper proves
#
# :::{prf:definition} The regime (Appendix B.3)
# :label: def-02-regime
#
# $d\to\infty$; $s^*\log^5d\le k\le d^{0.4}$; binomial counts, $s^*$ a power of $\log d$ above the 15th; distractors of $\alpha^\dagger_p\ge\log^{-4}d$, but $s^\dagger\alpha_p^\dagger\le O(1/\log d)$; $\lambda=\log^5d$; vanishing noise and jitter. [The record](#02-coarse-proof) has all conditions.
# :::
#
# :::{prf:theorem} Coarse labels (Theorem 5.1)
# :label: thm-02-coarse
#
# In this regime, with probability $1-o(1)$: at all polynomial times after some $T^*\le\mathrm{poly}(d)$ the training loss is $o(1)$ on every point, and an easy test point is misjudged with probability $o(1)$; at *every* polynomial time a hard test point is misjudged with probability $\Omega(1)$.
# :::
#
# :::{prf:theorem} Fine labels (Theorem 5.2)
# :label: thm-02-fine
#
# In this regime, with high probability, there is a polynomial time at which the network trained on fine labels misjudges the subclass, and through {eq}`eq-02-max` the superclass, of an easy or a hard point with probability $o(1)$.
# :::
#
# [Proofs.](#02-coarse-proof) For later times the paper gives orders: under coarse labels the ratio is $\Theta(k)$, the fine response $O(\log d/k)=o(1)$. The relative fluctuation of binomial counts, $1/\sqrt{s^*}$, vanishes as $s^*\to\infty$.
#
# <a id="02-to-coarse"></a>
# ## Fine to coarse
#
# *Fine-tuning* on coarse labels sends the gradient to the classes that attain the maxima, whose right detectors go on growing. A *linear probe* fitted on easy points alone favours common features: on idealised networks with exact counts it [misjudges](#02-transfer) 100 % of the hard points with the coarse, 99.5 % with the fine backbone.
#
# <a id="02-experiments"></a>
# <a id="theorems-5-1-and-5-2-run"></a>
# <a id="growth-the-ratio-the-law-the-two-flows"></a>
# ## The experiment: both theorems, run
#
# The paper has no simulation. Four random networks each train on sign and on subclass. *Prediction* for exact counts:
#
# - easy points: no errors;
# - hard points: coarse labels fail, since $8>k^*$; fine labels succeed;
# - growth ratio: 8 at all times under coarse labels, from $\frac8{15}$ downwards under fine ones;
# - output of the idealised network under coarse labels: $F+e^F=1+\kappa t$.

# %%
labels = {
    "coarse labels": data.true_labels(k, 1),
    "fine labels": data.true_labels(k, k),
}
starts = {  # classes, neurons per class, detectors of each feature among them
    "coarse labels": trainer.drawn(world, 2, coarse_neurons, coarse_detectors),
    "fine labels": trainer.drawn(world, 2 * k, fine_neurons, fine_detectors),
}

# %% tags=["hide-input"]
n_steps = {"coarse labels": coarse_steps, "fine labels": fine_steps}
tests = {
    "easy": trainer.held_out(world, 2, copies=6),
    "hard": trainer.held_out(world, 3, copies=6, hard=True),
}
trained, ideal = {}, {}
for name, label in labels.items():
    steps = n_steps[name]
    looks = [s for s in (0, 1, 2, 5, 10, 20, 50, 100, 200, 500) if s < steps]
    how = {"start": starts[name], "step_size": step_size, "tests": tests}
    trained[name] = trainer.train(world, label, 1, steps, log_at=[*looks, steps], **how)
    marks = [round(s) for s in np.geomspace(1, ideal_steps, 14)]
    how = {"tests": {"easy": tests["easy"]}, "log_at": marks}
    ideal[name] = trainer.train(world, label, 4, ideal_steps, **how)
    easy, hard = (measure.last_error(trained[name], kind).mean() for kind in tests)
    print(f"{name}, {steps} steps: error {easy:.3f} easy, {hard:.3f} hard")

# %% tags=["hide-input"]
figures.show(
    plots.margins_over_training(trained),
    title="Exact counts: on hard points fine labels raise the margin",
    alt="Mean margin against training step, logarithmic, one line per network. Easy "
    "test points: the margins of both kinds of network rise from zero. Hard test "
    "points: those of networks trained on fine labels rise, those of networks trained on "
    "coarse labels fall ever further below zero.",
    opening=True,
)

# %% [markdown]
# ([The first figure](#fig-02-contrast).)

# %% tags=["hide-input"]
figures.show(
    plots.ratio_and_law(unit, trained, fine_detectors * step_size, ideal),
    title="Exact counts: the ratio stays at $k$ under coarse labels only",
    alt="Left: ratio of common to fine growth over the steps, both axes logarithmic. "
    "Under coarse labels all runs lie on the line at k; under fine labels they start "
    "near one half and fall along the line of theory. Right: the output of the right "
    "class of the idealised network under coarse labels lies on the curve of the log law.",
)

# %% tags=["remove-cell"]
coarse, fine = trained.values()
last = [measure.last_error(run, "easy") for run in (coarse, fine)]
ledger.mean("easy-points-learned", coarse=last[0], fine=last[1])
ledger.mean("coarse-fails-on-hard", measure.least_error(coarse))
ledger.mean("fine-understands-hard", measure.last_error(fine))
ledger.mean("growth-ratio-k", **measure.ratio_over_k(coarse, k))
kappa = theory.coarse_clock(*unit)
ledger.mean("log-law", **measure.log_law(ideal["coarse labels"], kappa))

# %% [markdown]
# All four come true; coarse labels fail on 99.5 % of hard points. Lines are theory, symbols runs.
#
# *Binomial counts.* Now patches draw their content independently, as in the paper.

# %% tags=["hide-input"]
chance = replace(world, binomial=True)
many = {"hard": trainer.held_out(chance, 15, copies=60, hard=True)}
binomial = {}
print("means over runs: ratio at step 5 and the end, hard error at step 5 and the end")
for name, label in labels.items():
    how = {"start": starts[name], "step_size": step_size, "tests": many}
    at = [5, n_steps[name]]
    binomial[name] = trainer.train(chance, label, 16, at[1], log_at=at, **how)
    for counts, run in (("exact", trained[name]), ("binomial", binomial[name])):
        seen = np.isin(run.steps, at)
        path = measure.growth_ratio(run)[seen].mean(1)
        wrong = measure.errors(run.log["hard"])[seen].mean(1)
        print(f"{name:13s}, {counts:8s}", *(f"{one:14.3f}" for one in (*path, *wrong)))

# %% tags=["remove-cell"]
coarse, fine = binomial.values()
ledger.mean("growth-ratio-k-binomial", **measure.ratio_over_k(coarse, k))
ledger.mean("coarse-fails-on-hard-binomial", measure.least_error(coarse))
ledger.mean("fine-understands-hard-binomial", measure.last_error(fine))

# %% [markdown]
# Under coarse labels the ratio falls, and with it the hard error. In a [longer run](#02-binomial) both go on falling. So 8 *at all times* and lasting failure hold for exact counts only. (The theorem lets $s^*$ grow and claims only $\Omega(1)$.) Fine labels do far better.
#
# <a id="02-kinds"></a>
# <a id="which-labels-a-synthetic-figure-5"></a>
# ## Which labels? Table 1 in the simulated world
#
# Each point also shows one of eight *backgrounds*, strong features independent of the class. Labels are *true* groups of subclasses (1, 2, 4 or 8 per superclass, or the 8 split in two), *random* IDs (2 or 8 per superclass, drawn for each point; or 8 *dealt* in turn within each subclass) and *clusters* (2 or 8 per superclass, $k$-means on sums of patches). Counts are exact, networks idealised, batches of 128 points. We measure what {eq}`eq-02-max` compares on a hard point: the largest common growth among wrong labels over the largest fine growth among right ones.
#
# *Prediction* from {prf:ref}`cor-02-ratio`: true labels have ratios 8, 8/3, 8/7, 8/15, and only the first exceeds $k^*$, here 3.2. Random IDs and clusters, which find the backgrounds, have 8.

# %% tags=["hide-input"]
strong = {"distractor_low": 0.3, "distractor_high": 0.4, "n_patches": n_patches + 8}
behind = {"n_backgrounds": 8, "background_patches": 4, "dim": 2 * k + 10}
behind = replace(world, **strong, **behind)
bare = replace(behind, n_backgrounds=0, background_patches=0)
points = {
    kind: trainer.held_out(one, 6, copies=6, hard=True)
    for kind, one in (("hard", behind), ("bare", bare))
}
pools = training.stack([behind.sample(100 * k, g) for g in trainer.generators(5)])
nearest = {n: data.nearest_cluster(pools, n, seed, n_init=4) for n in (2, 8)}
kinds = data.label_kinds(k, nearest)
by_kind = arms.by_kind(trainer, behind, kinds, sweep_steps, points)

# %% tags=["hide-input"]
figures.show(
    plots.by_label(by_kind, kinds),
    title="In the simulated world finer labels help when they follow the features",
    alt="For ten kinds of labels, the ratio of common to fine growth after one step "
    "and the hard error. The ratio falls from k for coarse labels to one half for fine "
    "ones, is k for random IDs dealt in turn and two clusters, and lower for drawn IDs "
    "and eight clusters; the hard error is near 100 percent for coarse and random "
    "labels, lower for clusters and 0 for true labels from two groups on.",
)

# %% tags=["remove-cell"]
even, uneven = (measure.off_ratio(by_kind, kinds, uneven) for uneven in (False, True))
ledger.mean("ratio-by-label", even)
ledger.mean("ratio-of-uneven-labels", uneven)
ledger.mean("granularity-monotone", **measure.refinement(by_kind))
ledger.mean("random-ids-do-not-help", measure.fewest_errors(by_kind, "random"))

# %% [markdown]
# Two true groups bring the ratio below $k^*$. Random IDs leave it above, and over 90 % of the hard points misjudged. Drawn IDs and eight clusters [fall below 8](#02-clusters) by imbalance in a batch.
#
# <a id="02-evidence"></a>
# <a id="real-images-which-labels-make-good-features"></a>
# ## The evidence: CIFAR-10 (Table 1)
#
# *The paper.* A ResNet-34, pretrained on half a million iNaturalist images, fine-tuned on them with 11 superclasses; validation errors (%):
#
# | Pretraining labels | Number of labels | Error |
# |---|---|---|
# | none (only the target) | | 5.87 |
# | the target's own | 11 | 5.25 |
# | true, just finer | 13 | 5.40 |
# | true | 1103 (best), 6485 | **4.79**, 4.84 |
# | clusters in superclasses | 22 to 22,528 | 5.14 rising to 5.37 |
# | random IDs | 22 to 11,264 | 6.10 to 6.61 |
# | one per image | 500,000 | 6.54 |
#
# Random IDs and unique labels are *worse* than no pretraining: without consistent labels and enough images for each, the authors say, networks learn details of single images. A ViT pretrained on 38 to 21,843 classes of ImageNet-21k gains at every level: on ImageNet-1k 72.8 to 82.5 % after fine-tuning (a probe: 57.4 to 81.5). Finer labels bring nothing within ImageNet-1k (Table 6; few images per class), and harm a probe for two superclasses of ImageNet-21k: 91.7 to 87.5 % (Table 5).
#
# *Here:* "animal or vehicle?" on our 12,000 images of CIFAR-10, with a small network: 2,000 steps of pretraining and 600 on the target of the same images; without pretraining, 2,600 on the target. Primary claim: ten labels beat two. *Prediction:* the paper's signs.

# %% tags=["hide-input"]
kept_runs.show("fine_grained_labels", "cifar10", setup=False)
kept = measure.kept_errors(kept_runs.load("fine_grained_labels", "cifar10")["runs"])

# %% tags=["hide-input"]
figures.show(
    plots.errors_by_arm(kept),
    title="CIFAR-10: ten labels do better than two, one per image worse",
    alt="Test errors by pretraining labels after fine-tuning on the images of pretraining, "
    "and their differences from two labels, seeds and means with 95 percent intervals.",
)

# %% tags=["hide-input"]
# NBVAL_CHECK_OUTPUT
pm = lambda values: "{:5.1f} ± {:3.1f}".format(*stats.mean_interval(values).plus_minus)
gains, declared = measure.gains(kept), claims.declared("fine_grained_labels")
secondary = {id: values for id, values in gains.items() if not declared[id].headline}
adjusted = stats.holm_tests(secondary)
print("test errors, points" + 27 * " ", "paper  here         p (Holm)")
for id, values in gains.items():
    end = f"{adjusted[id][1]:.3f}" if id in adjusted else "primary"
    row = declared[id].unit.split(", ")[1]
    print(f"{row:47s}{declared[id].paper or '–':<7}{pm(values)}  {end}")
    ledger.mean(id, values)

# %% [markdown]
# The *primary claim* is confirmed: ten labels end 0.83 ± 0.40 points below two (the paper: 0.46). They also beat no pretraining; unique labels (none learned) are worse than both. *Unlike the paper:* clusters (here of *pixels*) hurt. *Undecided:* random IDs, pairs, two labels against no pretraining and, after correction, a probe.
#
# A minus is the opposite of the paper's sign. $p$: paired $t$-tests with Holm's correction for the secondary rows. Last row: gain on images that the network without pretraining misjudges, beyond an equal cut of all errors. ([More.](#02-trained))
#
# <a id="02-take-home"></a>
# ## What to take home
#
# - In the idealised network, a detector's growth is proportional to its feature's frequency times the mean residual where the feature shows. At first coarse labels favour the common feature $k$ to 1, and $g$ equal groups of subclasses $k$ to $2g-1$.
# - With exact counts, the idealised network's fine features stay $k$ times behind under coarse labels however long training is. In our runs with binomial counts of mean 4 they slowly catch up.
# - Under fine labels, the idealised network's fine feature leads from the first step on: only doubt about the superclass drives the common one.
# - In our simulated world with exact counts, labels that follow the fine features bring the ratio below $k^*$; random IDs inside a superclass do not.
#
# The headline claims ([all claims](#02-held-up)):
#
# ```{headlines}
# ```
#
# **Holds in our runs** with exact counts at $k=8$: ratio and both errors. **Not confirmed:** with binomial counts of mean 4, a constant ratio and 90 % error under coarse labels (stronger than the theorems). **Confirmed on CIFAR-10:** ten labels beat two. **Not there:** the paper's order of all label sets.
#
# <a id="02-try"></a>
# ## Try it
#
# :::{exercise}
# :label: ex-02-unequal
#
# By hand: let the superclasses have $k_+$ and $k_-$ subclasses and equally many points. What are the growth ratios under coarse labels, and whose hard points flip first as both grow?
# :::
#
# :::{solution} ex-02-unequal
# :class: dropdown
#
# In {prf:ref}`prop-02-drift` fine features now have $\Pr[u]=\frac1{2k_\pm}$, common ones still $\frac12$: the ratios are $k_+$ and $k_-$. A hard point of $+$ needs roughly $k_+<k^*$, whatever $k_-$ is, because the distractors' detectors, those of $v_-$, grow as fast as those of $v_+$ (exactly so at first; later $A_c=F/(\gamma\,(n_c+n_f/k_\pm))$ with nearly equal $F$, so up to a factor $(1+\frac1{k_+})/(1+\frac1{k_-})$ if $n_c=n_f$). So the superclass with more subclasses flips first.
# :::
#
# :::{exercise}
# :label: ex-02-few
#
# Re-run the chapter with weaker distractors. What happens to $k^*$ and to the claim `coarse-fails-on-hard`?
# :::
#
# :::{solution} ex-02-few
# :class: dropdown
#
# `mvnb run 02 -p distractor_low=0.1 -p distractor_high=0.15`. Now $\bar\alpha^\dagger-\frac1\lambda=0.075$ and $k^*\approx12.7>8$: coarse labels cope with most hard points, the claim fails, and it should. (The strong noise patch makes the rest of the errors.)
# :::

# %% [markdown]
# <a id="02-record"></a>
# ## The record
#
# For those who check: proofs, tests of the theorems, further results and everything that was judged, in sections that can be read in any order.
#
# <a id="02-gradient-check"></a>
# ### The gradient, checked
#
# *Supports {eq}`eq-02-update`.* A test compares the gradient written by hand with automatic differentiation, for fine labels and through the max read-out. They agree to $10^{-12}$.

# %% [markdown]
# <a id="02-detectors"></a>
# <a id="the-derivation-i-who-fires-at-the-start"></a>
# ### Who fires at the start (Propositions 1 and 2)
#
# *Supports the idealised network: the number of detectors in random networks is that of an exact formula.* A Gaussian neuron has inner product $\sigma_0g$, $g\sim\mathcal N(0,1)$, with each feature, and fires on it if $g$ exceeds $\theta$ or so. Call a neuron a *possible detector* of $v$ if $g_v\ge\theta-\delta$, and a *singleton detector* if $g_v\ge\theta+\delta$ and it is a possible detector of nothing else. The slack $\delta$ absorbs jitter and noise.
#
# :::{prf:proposition} Detectors (Propositions 1 and 2, before asymptotics)
# :label: prop-02-detectors
#
# Let $Q$ be the Gaussian tail and $M$ the number of features. Of $m$ independent neurons, the numbers of singleton and of possible detectors of a given feature are binomial with means
#
# $$
# \mathbb E|S^*|=m\,Q(\theta+\delta)\,\bigl(1-Q(\theta-\delta)\bigr)^{M-1},\qquad \mathbb E|S|=m\,Q(\theta-\delta).
# $$ (eq-02-detectors)
# :::
#
# :::{prf:proof}
# Inner products with orthonormal vectors are independent Gaussians, and neurons are independent.
# :::
#
# With $\theta=\sqrt{(4+2c_0)\log d}$ and $m=\Theta(d^{2+2c_0})$ for a small $c_0>0$ (coarse; $2+2c_0$ under the root and $m=\Theta(d^{1+2c_0})$ for fine labels) the bound $Q(\theta)\approx e^{-\theta^2/2}/(\theta\sqrt{2\pi})$ gives $\Theta(d^{c_0}/\sqrt{\log d})$ detectors of every feature, the same for all up to $1\pm O(\log^{-5}d)$. That is the paper's statement. At $d=128$, $c_0=0.05$ and $m=d^{2+2c_0}$ it means 0.1 detectors. We keep the logic and change the constants:
#
# - *compressed* networks: draw $m$ neurons, choose $\theta=Q^{-1}(n/m)$ so that each feature has $n$ detectors on average, and leave out the neurons that are possible detectors of nothing. They fire on no feature, so they have no gradient and never move, and leaving them out changes no output at an easy point;
# - *stratified* networks: exactly one singleton detector per class and feature. This is the idealised network with $n_c=n_f=1$; $n$ detectors that move alike behave as one with $n$ times the step.

# %% [markdown]
# A test compares compressed with dense networks. The numbers of detectors in the lesson's networks, per class and feature, against {eq}`eq-02-detectors`:

# %%
scores = []  # in standard errors, one per run
sizes = ((coarse_neurons, coarse_detectors), (fine_neurons, fine_detectors))
for (name, start), size in zip(starts.items(), sizes):
    for what, (mean, expected, score) in measure.detector_counts(start, *size).items():
        scores.append(score)
        print(f"{name}, {what:8s} {mean:.2f} (theory {expected:.2f})")

# %% tags=["remove-cell"]
ledger.mean("detector-counts", np.abs(scores).max(0))

# %% [markdown]
# They are off by chance only.
#
# <a id="02-bias"></a>
# <a id="02-invariants"></a>
# <a id="why-a-bias-at-all"></a>
# <a id="do-the-invariants-hold"></a>
# ### What the bias does (Theorems F.1 and G.1)
#
# *Supports {eq}`eq-02-bias`: in the lesson's runs no neuron fires on noise or learns a foreign feature, and without a bias noise decides.*
#
# :::{prf:lemma} The bias outruns everything but the feature
# :label: lem-02-bias
#
# Suppose that in one step a neuron has moved by $\Delta w=\beta\,(v+\xi)$, where $\beta\ne0$ and $\xi$ is orthogonal to the feature $v$, and its bias by $\Delta b=-\|\Delta w\|/\lambda$.
#
# 1. On any patch $x$ with $|\langle v+\xi,x\rangle|<\|v+\xi\|/\lambda$, such as pure noise with $\sigma_\zeta\ll1/\lambda$ or, for small $\xi$, another feature, its pre-activation $\langle w,x\rangle+b$ falls.
# 2. On $x=av$, $a>0$, it changes by $\beta a-|\beta|\,\|v+\xi\|/\lambda$: it rises if $\beta>0$ and $a>\|v+\xi\|/\lambda$, and falls if $\beta<0$.
# :::
#
# :::{prf:proof}
# The pre-activation changes by $\langle\Delta w,x\rangle+\Delta b=\beta\,\langle v+\xi,x\rangle-|\beta|\,\|v+\xi\|/\lambda$.
# :::
#
# By induction over the steps, a singleton detector fires on the patches of its own feature and on no others, moves along $v$ plus averaged noise, and by the lemma goes on doing so. A neuron that fires on nothing at the start has no gradient and stays. A detector of a feature that its class does *not* own is pushed with $\beta<0$ and never responds more than at the start. The paper's Theorem F.1 controls the small $\xi$ with high probability for all polynomial times; that part is quoted. What can be counted in the lesson's networks at the end are the share of pairs of a noise patch and a neuron that fire, and the share of neurons that respond more than at the start to a feature that is not their class's:

# %%
shares = {}  # (firing on noise, louder on foreign features), one per run
for name, run in trained.items():
    firing = measure.firing_on_noise(run.params, tests["easy"])
    louder = measure.louder_on_foreign(run.params, starts[name], labels[name].table)
    shares[name] = firing, louder
    print(f"{name}: firing {firing.mean():.0e}, louder {louder.mean():.0e}")

# %% tags=["remove-cell"]
worst = np.max(list(shares.values()), axis=0)
ledger.mean("invariants", noise=worst[0], foreign=worst[1])

# %% [markdown]
# *Without a bias.* The paper remarks that even the ideal linear model fails on such data, because the noise of all patches adds up. A ReLU without a bias has the same weakness: half of the noise patches make it fire. The experiment has coarse labels, noise twenty times as strong as in the lesson, and more and more patches; random neurons with $b=0$ and $\lambda=\infty$ against the idealised network with $\lambda=2.5$, the largest that covers four standard deviations. *Prediction:* without a bias errors on *easy* points grow with $P$, with it they do not.

# %%
COUNTS = (16, 64, 256, 512)
small = data.HierarchicalMultiView(2, 12, 16, noise=0.1, jitter=0.05)
with_bias = replace(trainer, bias_rate=1 / 2.5, step_size=0.1)
without_bias = replace(trainer, bias_rate=0.0, step_size=0.02)
start = trainer.random(small, 2, n_neurons=16, scale=1e-3)
noise_runs = {  # (firing or error, number of patches, run)
    "no bias": arms.by_patches(without_bias, small, start, COUNTS),
    "bias": arms.by_patches(with_bias, small, trainer.idealised(small, 2), COUNTS),
}

# %% tags=["hide-input"]
figures.show(
    plots.with_and_without_bias(COUNTS, noise_runs),
    title="Without a bias, the noise of many patches outweighs the signal",
    alt="Left: share of noise patches on which a neuron fires, one half without a "
    "bias and zero with it. Right: error on easy points against the number of "
    "patches, rising to one half without a bias and zero with it.",
)

# %% tags=["remove-cell"]
ledger.mean("bias-keeps-noise-out", **measure.noise_kept_out(noise_runs))

# %% [markdown]
# Half of all noise patches make a neuron without a bias fire, however many there are, and at a few hundred patches their sum decides. With the bias hardly any does, and the error stays at zero.
#
# <a id="02-drift"></a>
# ### The growth law, checked
#
# *Supports {prf:ref}`prop-02-drift` and {prf:ref}`cor-02-ratio`: exact at the first step.* With exact counts, no noise and no jitter the expectation is attained by any batch in which subclasses and IDs are balanced. Seven label functions, every detector of every class, foreign ones included:

# %%
# NBVAL_CHECK_OUTPUT
still = replace(world, noise=0.0, jitter=0.0)
cases = {"unrelated": data.dealt_ids(k, 4, superclasses=1)}
cases |= {f"true, {g}": data.true_labels(k, g) for g in (1, 2, k // 2, k)}
cases |= {f"random, {n}": data.dealt_ids(k, n) for n in (2, 8)}
balanced = still.sample(16 * k, seed, dtype=torch.float64)
drift_errors = []
for name, (label, table, _) in cases.items():
    moved = measure.first_step(still, balanced, label(balanced), len(table))
    drift = theory.first_drift(table, 1.0, s_star, 1.0)
    drift_errors.append(np.abs(moved - drift).max())
    quotient = "0 / 0" if name == "unrelated" else f"{moved[0, 0] / moved[0, 2]:.3f}"
    exact = drift_errors[-1] < 1e-12
    print(f"{name:10s} all {moved.size:3d} to 1e-12: {exact}   ratio {quotient}")

# %% tags=["remove-cell"]
ledger.exact("first-drift", max(drift_errors))

# %% [markdown]
# <a id="02-recursion"></a>
# ### The log law in discrete steps
#
# *Supports {prf:ref}`thm-02-log`.* The paper proves the law for the network and in discrete time (Lemma E.4, with an error $O(\log^{-4}d)\log t$, by way of harmonic sums). The discrete step costs little:
#
# :::{prf:lemma} The recursion behind the log law (ours)
# :label: lem-02-recursion
#
# If $A_{t+1}=A_t+\nu e^{-A_t}$ with $\nu>0$, then with $y_t=e^{A_0}+\nu t$
#
# $$
# 0\ \le\ A_t-\log y_t\ \le\ \log\Bigl(1+\frac{\nu\,e^{\nu/y_0}}{2\,y_t}\Bigl(\frac \nu{y_0}+\log\frac{y_t}{y_0}\Bigr)\Bigr).
# $$ (eq-02-recursion)
# :::
#
# :::{prf:proof}
# For $e^{A_t}$ a step is nearly the addition of $\nu$, and what it adds beyond $\nu$ sums like a harmonic series, to a logarithm.
# Let $z_t=e^{A_t}$, so that $z_{t+1}=z_te^{\nu/z_t}$. From $e^x\ge1+x$ we get $z_{t+1}\ge z_t+\nu$, hence $z_t\ge y_t$. From $e^x\le1+x+\frac{x^2}2e^x$, $z_{t+1}-z_t-\nu\le\frac{\nu^2}{2z_t}e^{\nu/z_t}\le\frac{\nu^2}{2y_t}e^{\nu/y_0}$, and $\sum_{\tau<t}\frac\nu{y_\tau}\le\frac \nu{y_0}+\log\frac{y_t}{y_0}$ by comparison with the integral.
# :::
#
# With $z=e^F$ the law reads $z+\log z=1+\kappa t$: $F(t)=1+\kappa t-W(e^{1+\kappa t})$ with Lambert's $W$ ([Corless et al., 1996](../book/references.bib#corless1996lambert)). Tests compare both with direct computation.

# %% [markdown]
# <a id="02-flips"></a>
# <a id="from-two-subclasses-to-thirty-two"></a>
# <a id="the-derivation-iv-which-hard-points-flip"></a>
# ### How many hard points flip (ours)
#
# *Supports {prf:ref}`prop-02-threshold`: the share of errors is a distribution function, and the transition from $k=2$ to 32 follows it.* Under coarse labels and exact counts $\varrho=k$ at all times. If $\alpha^\dagger_p$ is uniform on $[\ell,h]$ and the small jitter of $\alpha_p$ is replaced by its mean, the probability of an error is therefore the same at all times,
#
# $$
# 1-H\Bigl(\frac{1}{h-\ell}\Bigl[\frac{n_f}{n_c}\cdot\frac{s^*(\bar\alpha-1/\lambda)}{\varrho}-s^\dagger\bigl(\ell-\tfrac1\lambda\bigr)\Bigr]\Bigr),
# $$ (eq-02-hard)
#
# where $H$ is the distribution function of the sum of $s^\dagger$ independent uniform variables on $[0,1]$: write $\alpha_p^\dagger=\ell+(h-\ell)U_p$ in {eq}`eq-02-flip` and solve for $\sum_pU_p$. (Under fine labels $\varrho$, and with it the error, falls with time.) To see the whole transition, distractors vary more in these runs, $\alpha^\dagger\in[0.05,0.35]$. *Prediction:* the ratio is $k$, a line of slope 1; the hard error follows {eq}`eq-02-hard` with $\varrho=k$ without strong noise.

# %%
SIZES = (2, 4, 8, 16, 32)
spread = replace(world, distractor_low=rate, distractor_high=0.35)
by_run, clean, noisy = arms.by_subclasses(trainer, spread, SIZES, sweep_steps)

# %% tags=["hide-input"]
sizes, smooth = np.array(SIZES, dtype=float), np.geomspace(1.6, 40, 200)
law = (s_star, alpha, s_dagger, rate, 0.35, rate)
middle = theory.critical_subclasses(s_star, alpha, s_dagger, (rate + 0.35) / 2, rate)
curve = np.array([smooth, theory.hard_error(smooth, *law)])
figures.show(
    plots.by_size(SIZES, by_run, clean, noisy, curve, middle),
    title="With exact counts, errors rise with the number of subclasses as computed",
    alt="Left: ratio of growth against k on logarithmic axes, on the line of slope "
    "one. Right: hard error against k; circles without strong noise lie on the "
    "theoretical curve, which rises from 0 at k equal 2 to 1 at 32 and passes one "
    "half at k star; triangles with strong noise lie close to it.",
)

# %% tags=["remove-cell"]
slopes = [stats.power_law_fit(sizes, one).slope for one in by_run.T]
ledger.mean("ratio-scales-like-k", slopes)
off = (theory.hard_error(sizes, *law), middle)
ledger.mean("hard-error-threshold", **measure.hard_threshold(sizes, clean, noisy, *off))

# %% [markdown]
# Circles are tested without strong noise, triangles with it. Strong noise softens the transition a little in both directions: now and then $\zeta^*$ happens to resemble the right common feature, now and then the wrong one.
#
# <a id="02-coarse-proof"></a>
# ### The proof of Theorem 5.1
#
# *Supports {prf:ref}`thm-02-coarse`.* [The regime](#02-theorems) also has $\iota\le1/\mathrm{polylog}(d)$; $\sigma_\zeta=1/(\sqrt d\log^{10}d)$; $P\sigma_\zeta\ge\omega(\mathrm{polylog}(d))$, $P\le\mathrm{poly}(d)$; $\omega(\mathrm{polylog}(d)/\sqrt d)\le\sigma_{\zeta^*}\le O(1/\mathrm{polylog}(d))$; $\sigma_0\le O(1/(d^3s^*\log d))$, a step of the order $\sigma_0$, batches of $kd\,\mathrm{polylog}(d)$ points or more, and $m=\Theta(d^{2+2c_0})$ neurons per class for coarse, $\Theta(d^{1+2c_0})$ for fine labels. The summary in the main text repeats $k\le d^{0.4}$ in Theorem 5.2 only; Appendix B.3 fixes it for both.
#
# :::{prf:proof}
# *(The skeleton. Quoted: the invariants of {prf:ref}`lem-02-bias` with high probability, Theorem F.1, and the concentration of counts.)* The common detectors bring the loss down by themselves, and once it is small hardly anything moves any more: the fine ones stay behind by a factor of order $k$, and on hard points distractors outweigh them.
#
# *Start.* Until outputs reach $1/d$ the residuals are $\frac12\pm O(1/d)$, so that by {prf:ref}`prop-02-drift` all singleton detectors of one feature get the same update, those of common features $k$ times that of fine ones, up to the fluctuation $s^{*-1/3}$ of the counts (Theorem D.1).
#
# *Freeze.* {prf:ref}`thm-02-log`, with multiplicative errors $1\pm O(\log^{-5}d)$: $F$ reaches $\log\log^5d$ in polynomial time, which makes the loss $o(1)$, and never exceeds $O(\log d)$; and as the residuals of different subclasses differ by at most $e^{O(\log d/k)}$, $A_f/A_c=\Theta(1/k)$ (Lemmas E.4, E.5).
#
# *Easy points.* By the second part of {prf:ref}`lem-02-bias` the other output stays at its initial $o(1)$, while the own one is $\Omega(\log\log d)$.
#
# *Hard points.* By {prf:ref}`prop-02-threshold` the distractors win once $s^\dagger\alpha^\dagger\gg(A_+/A_-)\,s^*/k$, where $A_\pm$ are the two classes' common detectors. The regime says $\alpha^\dagger\ge\log^{-4}d$ and $s^*/k\le\log^{-5}d$, so that a ratio of order 1 is enough. The paper has $A_+/A_-\le O(\log d)$ (Lemma E.6), which at $k=s^*\log^5d$ and with few distractors leaves nothing over. More is true: on an easy point the other output is $o(1)$, so that each class follows {prf:ref}`thm-02-log` for itself, with constants $\kappa_\pm=(1\pm o(1))\,\kappa$; and as $F$ is concave in $\kappa t$ and starts from 0, $A_+/A_-\le\bigl(1+o(1)\bigr)\max(1,\kappa_+/\kappa_-)=1+o(1)$.
#
# *Early times.* Where $A$ is still below the initial scale both outputs are made of responses of idle neurons to $\zeta^*$; by the symmetry of the two signs the wrong one is larger with a constant probability.
# :::
#
# The theorem claims only $\Omega(1)$; {eq}`eq-02-flip` gives an error near 1 far beyond $k^*$, because the distractors pull systematically. The regime is consistent, but no network of today is in it: $s^*\log^5d\le d^{0.4}$ with $s^*=\log^{15}d$ needs a dimension of more than 120 digits.
#
# <a id="02-fine-proof"></a>
# ### The proof of Theorem 5.2, and the flow
#
# *Supports {prf:ref}`thm-02-fine` and {prf:ref}`prop-02-fine-flow`: gradient descent follows the flow.*
#
# :::{prf:lemma} Constants of Lemma G.2
# :label: lem-02-constants
#
# While all outputs lie in $[0,\log\frac32]$, all probabilities lie in $[\frac1{3k},\frac3{4k}]$, and {eq}`eq-02-pushback` in $[\frac14,\frac23]$.
# :::
#
# :::{prf:proof}
# $Z$ has $2k$ terms between 1 and $\frac32$; so $\frac1{3k}=\frac1{2k\cdot3/2}\le p\le\frac{3/2}{2k}=\frac3{4k}$. And $(1-p_o)-(k-1)p_s$ lies between $1-k\cdot\frac3{4k}$ and $1-k\cdot\frac1{3k}$.
# :::
#
# :::{prf:proof}
# *(Of Theorem 5.2: the skeleton; the same things are quoted.)* Siblings push the common detectors back but not the fine ones, so fine detectors grow the faster; if training stops while all outputs are still constants, the fine patches decide easy and hard points alike.
#
# Stop when the first output reaches some $B\le\log\frac32$. Up to then {prf:ref}`lem-02-constants` holds: in $T_0$ steps fine detectors have grown by $(1-O(\frac1k))\,a$ and common ones by between $\frac14a$ and $\frac23a$, with $a=\mu s^*\bar\alpha T_0/(2k)$.
#
# *Easy points.* With $n$ detectors of everything the own output is at least $\gamma n\,(1+\frac14)\,a$ up to $o(1)$, that of a sibling at most $\gamma n\cdot\frac23a$, the others $o(1)$; and $B=\Theta(1)$ makes these outputs constants.
#
# *Hard points.* The own output is still $\gamma n\,(1-O(\frac1k))\,a=\Theta(1)$. Siblings have nothing to fire on, and the other superclass gets distractors worth at most $O(1)\cdot s^\dagger\alpha^\dagger=O(1/\log d)$; the strong noise is worth $O(1/\mathrm{polylog}\,d)$ to any class, as $\sigma_{\zeta^*}$ is small beside 1. So the own output is strictly the largest, and the max over the right superclass is the own class or larger.
#
# *Fine-tuning keeps it.* With {eq}`eq-02-max` as logits of the coarse question, the residual of the right superclass is positive and goes to the arg-max class's neurons; a wrong superclass's neurons fire on nothing in an easy point. Detectors of own features only grow.
# :::

# %% [markdown]
# The lesson's runs beside the flow: the ratio after one step in networks with random weights, and the growth of common and fine detectors in the idealised network at all logged steps.

# %% tags=["hide-input"]
flow = measure.fine_flow(trained["fine labels"], ideal["fine labels"], unit)
expected = theory.growth_ratio(k, k)
early = (flow["ratio"] * expected).mean()
print(f"ratio after one step {early:.3f}, theory {expected:.3f}")
print(f"largest distance from the flow: {100 * flow['off'].mean():.1f} %")

# %% tags=["remove-cell"]
ledger.mean("fine-flow", **flow)

# %% [markdown]
# <a id="02-binomial"></a>
# ### Binomial numbers of patches, longer training
#
# *Supports [the experiment](#02-experiments): with binomial counts and $s^*=4$ the ratio and the hard error go on falling.* In the paper each patch shows a feature independently of the others, so that "about $s^*$" is a binomial number. With $s^*=4$ it is 0 now and then, and a hard point without a fine patch has lost its label ($e^{-4}\approx2\,\%$ with many patches). Here the idealised network trains longer, on points with 20 patches:

# %%
longer = replace(world, binomial=True, n_patches=20)
look = {"hard": trainer.held_out(longer, 17, 24, hard=True)}
how = {"tests": look, "log_at": [1, ideal_steps, 3 * ideal_steps]}
run = trainer.train(longer, labels["coarse labels"], 4, 3 * ideal_steps, **how)
path, wrong = measure.growth_ratio(run).mean(1), measure.errors(run.log["hard"])
for step, ratio, error in zip(run.steps, path, wrong.mean(1)):
    print(f"step {step:4d}: ratio {ratio:.2f}, hard error {error:.2f}")

# %% [markdown]
# `mvnb run 02 -p ideal_steps=2000` goes on to step 6,000: ratio 3.7, below $k^*$, and hard error 0.49. (With exact counts the ratio is 8.0 at all times.) So `coarse-fails-on-hard-binomial` and `growth-ratio-k-binomial` fail, and the two claims for exact counts say nothing about the paper's own data.
#
# With binomial counts the clock is not shared. The common feature makes most of the output, so the residual is larger at points with few common patches. Weighted by the residual, points show fewer common than fine patches, and the fine feature catches up. The relative fluctuation of the counts is $1/\sqrt{s^*}$. Under fine labels the hard error at the end is near the limit of 2 %: with twenty other seeds, `fine-understands-hard-binomial` holds for ten and is undecided for ten.
#
# <a id="02-clusters"></a>
# ### Clusters and random IDs: what is left to help
#
# *Supports [the comparison of labels](#02-kinds): drawn IDs and eight clusters favour fine features by chance, but hard points that show no background are nearly all misjudged, and clusters of the whole data drive no common feature.* The kinds of labels:

# %% tags=["hide-cell"]
figures.show_code(data.label_kinds)

# %% [markdown]
# The ratio after one step and at the end, and the error on hard points with and without backgrounds (means over runs):

# %%
for name in [name for name in kinds if name.startswith(("random", "clusters"))]:
    run = by_kind[name]
    first, end = run.log["read-out"].mean(1)
    wrong = [measure.last_error(run, kind).mean() for kind in ("hard", "bare")]
    print(
        f"{name:15s} ratio {first:.1f}, then {end:.1f};"
        f" error {wrong[0]:.2f}, without {wrong[1]:.2f}"
    )

# %% tags=["remove-cell"]
fewest = measure.fewest_errors(by_kind, ("random", "clusters"), "bare")
ledger.mean("backgrounds-explain-the-rest", fewest)

# %% [markdown]
# In the paper each image has an ID of its own draw; so have the points here. In a batch the IDs of a subclass are then not equally frequent, and neither are clusters. A fine feature grows fastest in the label that its few points happen to have most often, and the maximum reads that label off. Over further steps this partly averages out. IDs dealt in turn, with which each subclass has every ID equally often in a batch, have none of this and keep the ratio $k$. Two clusters lump the backgrounds together unevenly, so labels are not equally frequent; the ratio stays near $k$, because the bracket in {eq}`eq-02-drift` is the same for common and for fine features. What helps there are the backgrounds of the test points (errors 0.78 with and 0.99 without them, in the runs shown). For the six kinds of balanced labels `ratio-by-label` can miss {prf:ref}`cor-02-ratio` only by jitter and noise.
#
# Clusters of the whole data belong to no superclass, so there is no maximum to read off. If they are independent of the subclass, the bracket in {eq}`eq-02-drift` vanishes and class features do not grow at first. Over many points, the first growth along common features is

# %% tags=["hide-input"]
anywhere = pools._replace(superclass=0 * pools.superclass)
whole = data.nearest_cluster(anywhere, 8, seed, n_init=40)
drifts = measure.drift_along_common(behind, whole, trainer.generators(0), n_labels=8)
print(f"all-data clusters over coarse labels: {np.mean(drifts):.3f}")

# %% tags=["remove-cell"]
above = measure.fewest_errors(by_kind, "clusters") - measure.last_error(by_kind["fine"])
ledger.mean("clusters-need-alignment", above=above, drift=drifts)

# %% [markdown]
# That is what chance leaves in a few thousand points: these clusters are the backgrounds.
#
# <a id="02-transfer"></a>
# <a id="what-the-fine-features-survive-and-what-a-probe-makes-of-them"></a>
# ### Fine-tuning and probes
#
# *Supports [fine to coarse](#02-to-coarse): fine-tuning through the max read-out shrinks no detector; a probe fitted on easy points alone fails on hard ones with either backbone.* First, fine-tuning of the lesson's networks on coarse labels:

# %%
how = {"tests": tests, "step_size": step_size, "steps": max(1, fine_steps // 2)}
run, start = trained["fine labels"], starts["fine labels"]
tuned = arms.fine_tune(trainer, world, run, start, **how)
grown, tuned_hard = measure.growth_kept(tuned, run), measure.last_error(tuned)
print(f"hard error {tuned_hard.mean():.3f}; growth of common and fine detectors, after")
print("over before:", grown.mean(0).round(3))

# %% [markdown]
# Next the probe, logistic regression on the responses of the neurons, summed over patches. It is fitted twice for each backbone: on easy points, and with one in twenty replaced by a hard one. *Prediction:* the first fails with both backbones, the second only with the coarse one.

# %%
fitted = trainer.held_out(world, 13, copies=20)
others = trainer.held_out(world, 14, copies=20, hard=True)
probed = {}  # by percentage of hard points: (backbone, run)
for percent, every in {0: None, 5: 19}.items():  # 19 and 2k are coprime
    how = (fitted, others, tests["hard"], every)
    probed[percent] = [measure.probe_error(run.params, *how) for run in ideal.values()]
    for name, wrong in zip(ideal, probed[percent]):
        print(f"{percent} % hard points, {name}: error {100 * wrong.mean():.1f} %")

# %% tags=["remove-cell"]
ledger.mean("fine-tuning-keeps-features", growth=grown.min(1), error=tuned_hard)
ledger.mean("probe-takes-the-shortcut", np.minimum(*probed[0]))
ledger.mean("probe-with-some-hard-points", np.subtract(*probed[5]))

# %% [markdown]
# So the maximum in {eq}`eq-02-max` is part of the theorem.
#
# <a id="02-trained"></a>
# ### CIFAR-10: are the networks trained, and where is the difference?
#
# *Supports [the evidence](#02-evidence): errors on the images trained on, and on the test images that a network without pretraining misjudges (hard) or not (easy).* The last lines compare the gain of ten labels over two with a cut of all errors in the same proportion, taken in each seed. This excess is no evidence for features: the same formula gives 10.2 ± 3.0 for clusters and 17.9 ± 3.6 for unique labels, which raise the error, because it rewards errors on other images than those of the network without pretraining. In the table of [all claims](#02-held-up) verdicts are uncorrected; after Holm's correction those on pairs, on clusters against no pretraining and on the probe are undecided.

# %% tags=["hide-input"]
# NBVAL_CHECK_OUTPUT
kept_runs.show("fine_grained_labels", "cifar10")
columns = ("labels", "labels fell", "fitted", "fell", "test", "probe", "hard", "easy")
print("means, %     ", *(f"{name:>11s}" for name in columns))
for arm, found in kept.items():
    means = [f"{found[name].mean():11.1f}" for name in columns]
    print(f"{arm:13s}", *(one.replace("nan", "  –") for one in means))
for part, (gain, even) in measure.gains_by_difficulty(kept).items():
    print(f"{part}: gain{pm(gain)}, even cut{pm(even)}, excess{pm(gain - even)}")

# %% [markdown]
# *Fair?* Steps were chosen on the official test images, with two seeds that are not used again: first among three, then, as choices lay at the border of this grid, among five, and again among six; of equal errors (pairs) the smaller step. Networks of the tuning trained on images that are test images here, but no choice was scored on them. The validation errors after fine-tuning, by step of pretraining (without it, of the target):

# %% tags=["hide-input"]
# NBVAL_CHECK_OUTPUT
tuning = ("cifar10-tuning", "cifar10-tuning-more", "cifar10-tuning-smallest")
for name in tuning:
    kept_runs.show("fine_grained_labels", name)
records = (kept_runs.load("fine_grained_labels", name) for name in tuning)
for arm, by_step in measure.validation_errors(*records).items():
    errors = (f"{step:g}: {error:5.2f}  " for step, error in sorted(by_step.items()))
    print(f"{arm:11s}", *errors)

# %% [markdown]
# *Known by heart?* At the chosen steps, errors on random IDs and unique labels are those of the first table. Without flips and shifts, and with a longer pretraining, one seed shows what becomes of networks that fit these labels. All these labels are fitted, and then random IDs err on 11.4 % of the test images, unique labels on 10.2 %, two labels on 9.8 % and no pretraining on 9.9 %: the order of the paper for random IDs, without an interval. (On the validation images two labels are behind unique ones, 10.8 to 10.4 %.)

# %% tags=["hide-input"]
# NBVAL_CHECK_OUTPUT
kept_runs.show("fine_grained_labels", "cifar10-memorised")
(one,) = kept_runs.load("fine_grained_labels", "cifar10-memorised")["runs"]
for arm, (found,) in one["values"].items():
    some = (f"{key} {found.get(key, 0.0):4.1f}" for key in ("labels", "fitted", "test"))
    print(f"{arm:13s}", *some)

# %% [markdown]
# On unique labels the smallest step was best, at the border of the grid: there the network learns none of its labels, and 600 steps on the target are nearly all its training. By mean validation error all larger steps are worse. (At this step every other arm is worse than at its own.) Random IDs are best inside the grid, where their labels are not fitted either.
#
# *Trained?* The columns "fell" say by how many percent the loss on the labels and on the target still fell over the last fifth of the steps; less than 1 % would be a network trained to its end. Fine-tuning is near rest in the mean (a negative number is a rise), the arm without pretraining is not: its loss still fell by 13 %. Losses of pretraining fell by 1 to 4 %, on unique labels not at all. "Labels" and "fitted" are errors on the images trained on. Of random IDs, guessing among those of the right superclass misses 80 %; of unique labels, all.
#
# *Sampling.* Each seed draws 6,000 images for training and 4,000 others for tests from the same 10,000, so the intervals contain the sampling of test images in part: those of two seeds overlap by 40 %.
#
# <a id="02-digits"></a>
# <a id="claim-probe-rises-with-granularity"></a>
# <a id="claim-too-fine-is-worse"></a>
# <a id="claim-random-labels-teach-little"></a>
# <a id="claim-random-probe-worse-than-coarse"></a>
# <a id="claim-parity-rises-with-granularity"></a>
# <a id="claim-whole-data-clusters-probe-worse"></a>
# ### Table 1 in seconds: digits, or your own images
#
# *The image experiment in small, to exercise every step; its intervals are wide.* The target is *round* {0,2,3,5,6,8} against *straight* {1,4,7,9} digits; {0,6}, {2,3,5,8} and {1,4,7,9} are just finer. The schedule of steps is the paper's, and fine-tuning has a quarter of the step and of the batch. `-p image_folder=FOLDER` takes images of your own, one folder per superclass with one folder per class inside, such as iNaturalist by taxonomic rank. The preset `paper` has the paper's ResNet-34 and its 90 epochs, on CIFAR-10 where no folder is given.

# %%
n_images = min(n_train or len(image_task.x), len(image_task.x))
streams = training.generators(seed, image_replicas)
chosen = [torch.randperm(len(image_task.x), generator=g)[:n_images] for g in streams]
how = {"epochs": image_epochs, "batch": image_batch, "step_size": image_step_size}
how |= {"seed": seed, "device": device}
on_images = arms.ImageTrainer(image_task, torch.stack(chosen), image_network, **how)
image_labels = data.image_labels(image_task, on_images.chosen, seed)
image_errors = {name: on_images.errors(some) for name, some in image_labels.items()}
one_pass = on_images.error()

# %% tags=["hide-input"]
print(f"{image_folder or dataset}, {n_images} images, {image_replicas} runs\n")
print(f"{'test error on the target, %':34s} number   probe        fine-tuned")
for name, (probed, tuned_error) in image_errors.items():
    number = int(image_labels[name].max()) + 1
    print(f"{name:34s} {number:6d}  {pm(probed)}  {pm(tuned_error)}")
print(f"{'no pretraining (one pass)':34s} {'':19s}  {pm(one_pass)}")

# %% tags=["remove-cell"]
ledger.judge(measure.image_gains(image_errors, one_pass))
if data.JUST_FINER not in image_errors:
    ledger.not_run("just-finer-tunes-worse", "the image folder has two levels")

# %% [markdown]
# As in Table 1, the mean error after fine-tuning is lowest for the true classes. Six runs of 360 test images decide only that unique labels are worse than the true classes, that pretraining beats one pass, and that a probe is worse than fine-tuning. The other comparisons lie within their intervals.
#
# <a id="02-tables"></a>
# <a id="the-paper-s-numbers"></a>
# ### The paper's other tables
#
# *Quoted, from the coarsest to the finest labels.* Error or accuracy in percent.
#
# | Table | Data, network, evaluation | Labels | Result |
# |---|---|---|---|
# | 1, clusters of all images | iNaturalist, ResNet-34, fine-tuned | 22 to 5632 | error 5.42 to 5.60 (baseline 5.25) |
# | 1, true labels | the same | 51, 273, 1103, 4884, 6485 | error 5.10, 4.83, 4.79, 4.82, 4.84 |
# | 1, rebalanced clusters inside superclasses | the same | 88 to 1984 | error 5.17 to 5.28 |
# | 2, true labels | the same, pretrained for 50, 70 and 90 epochs | 1103 | error 4.90, 4.82, 4.79 |
# | 3 | iNaturalist, ResNet-50, true labels | 11, 13, 51, 273, 1103, 4884, 6485 | error 4.43, 4.44, 4.36, 4.22, 4.20, 4.23, 4.33 |
# | 3 | the same, random IDs | 22 to 500,000 | error 5.13 to 5.40 |
# | 4 | ImageNet-21k, ViT-B/16, "living thing?", one run | 2, 38, 160, 519, 2281, 5995, 21843 | error 7.90, 7.55, 7.31, 6.97, 6.70, 6.76, 6.56 |
# | 5 | the same, probe | 2; 21843 | accuracy 91.7; 87.5 |
# | 5 | the same, best of six fine-tunings | 2; 21843 | accuracy 92.1; 93.4 |
# | 6 | ImageNet-1k on itself, ResNet-50, clusters or random IDs in classes | 1000; 2000 to 8000 | error 23.3; 23.4 to 23.8 |
# | 7 | ImageNet-21k to ImageNet-1k, fine-tuned, best step | 38, 160, 519, 2281, 5995, 21843 | accuracy 72.8, 75.5, 77.5, 80.3, 81.3, 82.5 |
# | 8 | the same, probe | the same | accuracy 57.4, 63.7, 69.0, 75.7, 78.3, 81.5 |
#
# Two standard deviations of Table 1, 0.77 (352 random IDs) and 0.758 (one label per image), are far out of line with the rest and perhaps misprints. In Table 7 coarser labels need a larger step of fine-tuning. In Table 5 the leaf backbone overfits in 90 epochs of fine-tuning.
#
# <a id="02-recipe"></a>
# ### In your own training loop
#
# *Pretraining on fine labels and fine-tuning on coarse ones in PyTorch, with nothing of this book's machinery. A test runs {py:func}`~mvnb.papers.fine_grained_labels.recipe.train_fine_to_coarse`.*

# %% tags=["remove-input"]
figures.show_code(recipe)

# %% [markdown]
# <a id="02-held-up"></a>
# ### All claims
#
# Rules were set on pilot runs of other sizes, some of them with the default seed; those of the CIFAR-10 run before it. Its primary claim is `cifar10-ten-fine-tuned`; its other claims are secondary. The rules for binomial counts are those for exact counts; it was known that two of them fail. The rows on uneven labels and on points without background were added after pilots with another seed. (The cells that record claims are in the notebook, but not on the site.) The functions that compute what is judged:

# %% tags=["hide-cell"]
figures.show_code(measure)

# %%
# NBVAL_CHECK_OUTPUT
ledger.show()

# %% [markdown]
# **Only scaled.** $d=64$, $k=8$, $s^*=4$, exact counts except where *binomial* is said, and $\lambda=20$ in the place of $\log^5d$. The regime of the theorems has no instance that could be run.
#
# **Outside the theory.** In the theory points are fresh and labels are free, so labels are never too fine. How many images a label needs before finer labels hurt is open.
#
# **Unclear in the text.** Average pooling is announced and sum pooling written (the update has the factor $1/P$ that the output lacks; we follow the formulas). Theorem D.1 (2) and Lemma G.2 (2) let fine detectors fire on patches of the common feature; their own is meant. The condition $P\sigma_\zeta\ge\omega(\mathrm{polylog})$ that is said to defeat linear models is not enough for it as a rule, because independent noise adds up like $\sqrt P\,\sigma_\zeta$. These and others are on the [errata page](../book/errata.md).
#
# <a id="02-not-run"></a>
# ### Not run here
#
# | What the paper reports | Why not by default | What runs it |
# |---|---|---|
# | Tables 1 to 3, Figure 5: iNaturalist 2021 mini, ResNet-34 and ResNet-50, at least six runs | half a million images, 2 h on 16 TPUs per run; no download that needs no account | `mvnb run 02 --preset paper -p image_folder=FOLDER` on one large GPU: ResNet-34, 90 epochs, images of 64 pixels |
# | Table 1, Figure 6: rebalanced clusters; CLIP embeddings for clusters | weights not bundled; no gain in the paper | not offered |
# | Table 2: earlier checkpoints | the networks train to their end | shorter schedules: `mvnb run 02 -p image_epochs=5`, and 10 |
# | Tables 4, 7 and 8, Figure 2: ImageNet-21k by WordNet level, ViT-B/16 | 12.7 million images, 1.5 to 2 days on 64 TPUs per run | not offered |
# | Table 5: long against short fine-tuning | one length by default | not offered; the two lengths of fine-tuning differ in the paper by overfitting |
# | Table 6: clusters in the classes of ImageNet-1k | the images, and 90 epochs of a ResNet-50 per run | not offered; no gain in the paper |
# | networks of the theorem's width, $d^{2+2c_0}$ neurons per class | $d=128$ would have 0.1 detectors per feature | `mvnb run 02 --preset paper` takes $d=512$ |
#
# <a id="02-exercises"></a>
# ### More exercises
#
# :::{exercise}
# :label: ex-02-lambert
#
# By hand: how long does coarse training take to bring the residual $\rho$ down to $\epsilon$, and how far has the fine output $\gamma\,n_fA_f$ come by then?
# :::
#
# :::{solution} ex-02-lambert
# :class: dropdown
#
# $\rho=1/(1+e^F)=\epsilon$ means $e^F=\frac1\epsilon-1$, and {eq}`eq-02-log` gives $\kappa t=\log(\frac1\epsilon-1)+\frac1\epsilon-2\approx\frac1\epsilon$. The fine part of the output is the share $\frac{n_f}{kn_c+n_f}$ of $F\approx\log\frac1\epsilon$: for $n_c=n_f$, $\frac1{k+1}\log\frac1\epsilon$. To bring it to 1 the loss would have to fall to $e^{-(k+1)}$.
# :::
#
# :::{exercise}
# :label: ex-02-probe
#
# By hand: a probe starts from 0 and follows the gradient of the logistic loss on pooled responses of easy points, with one detector of everything. What is the ratio of its first responses to a common and to a fine patch, for the coarse backbone ($A_c=kA_f$) and for the fine one ($A_c\approx\frac12A_f$)? Why does it take the shortcut on both?
# :::
#
# :::{solution} ex-02-probe
# :class: dropdown
#
# The probe's first weight on a neuron is proportional to the neuron's mean response on points of one sign. Coarse backbone: $A_c$ and $A_f/k$; a common patch then gets $A_c^2$, a fine one $A_f^2/k$, a ratio of $k^3$. Fine backbone: $k$ classes have a detector of the common feature each, so $kA_c^2$ against $A_f^2/k$, a ratio of $k^2(A_c/A_f)^2\approx k^2/4$. Both exceed $k^*$ at $k=8$. The second is much smaller, which is why a few hard points correct it.
# :::
#
# <a id="02-further"></a>
# ### Further reading
#
# - Multi-view data and the patch network are from Allen-Zhu and Li ([Allen-Zhu and Li, 2020](../book/references.bib#allenzhu2020towards)); [the chapter on Midpoint Mixup](01_midpoint_mixup.ipynb) asks the same question of the loss instead of the labels. There a polynomial activation makes the stronger feature win everything; here the plain ReLU grows at a steady rate, which is what makes ratios computable.
# - A dominant feature that saturates the loss and starves the others is known as gradient starvation ([Pezeshki et al., 2021](../book/references.bib#pezeshki2021gradient)) and as simplicity bias ([Shah et al., 2020](../book/references.bib#shah2020pitfalls)).
# - The data sets of the original: iNaturalist ([Van Horn et al., 2021](../book/references.bib#vanhorn2021benchmarking)), ImageNet ([Deng et al., 2009](../book/references.bib#deng2009imagenet)); its networks: ResNets ([He et al., 2016](../book/references.bib#he2016deep)) and vision Transformers ([Dosovitskiy et al., 2021](../book/references.bib#dosovitskiy2021image)); its embeddings: CLIP ([Radford et al., 2021](../book/references.bib#radford2021learning)).
# - What a pretext task without labels does to such features is the subject of [the chapter on mask reconstruction](03_mask_reconstruction.ipynb).
