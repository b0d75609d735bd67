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
# # Early layers find the tokens that matter
#
# > *Discovering the Gems in Early Layers: Accelerating Long-Context LLMs with 1000x Input Token Reduction*, Zhenmei Shi, Yifei Ming, Xuan-Phi Nguyen, Yingyu Liang and Shafiq Joty ([Shi et al., 2024](../book/references.bib#shi2024gems)); in full as chapter 9 and appendix G of Shi's thesis ([Shi, 2024](../book/references.bib#shi2024thesis)), which we follow.
#
# Ask a language model about one sentence of a very long text, and long before its last layer the attention of the last token already points at that sentence. So run the first layers only, keep the $k$ tokens that they point at, and let the whole model read these from the beginning: *GemFilter*. In the paper's models it saves four to six tenths of the work on the prompt, and it can answer where the model that has read everything fails, because finding a token is easier than reading it among thousands of others.
#
# <a id="fig-15-opening"></a>

# %% tags=["remove-input"]
from mvnb import figures

figures.opening()

# %% [markdown]
# Left: a small model that was trained to look up values, on prompts of the trained length and longer. Right: SmolLM2, a language model of 135 million parameters: how much of a hidden sentence is among the 160 tokens that each layer would select (dotted: at random), kept from a longer run.
#
# Both are explained [further down](#15-experiments). The paper's models have 4 to 12 billion parameters and read 120,000 tokens; ours read a thousand, and we say plainly what that can show and what it cannot.

# %% tags=["parameters", "hide-input"]
seed = 0  # first seed: replica r is the run with seed + r (integer, 0 or more)
replicas = 4  # independent small models (2 or more)
device = "auto"  # "auto", "cpu" or "cuda"; closed forms stay on the CPU
steps = 120  # training steps of a small model (1 or more)
batch = 32  # sequences a step (2 or more)
step_size = 4e-3  # AdamW's learning rate, warmed up for 25 steps (above 0)
train_length = 48  # longest haystack in training, tokens (32 or more, in fours)
test_lengths = [48, 144, 480]  # in tests: train_length first, ascending (32 or more)
depths = [0.0, 0.25, 0.5, 0.75, 1.0]  # of the needle: 0 beginning, 1 end (0 to 1)
test_prompts = 6  # prompts a length and depth (2 or more)
check_draws = 4000  # draws behind simulated odds of finding (500 or more)
language_model = "smollm2-135m-instruct"  # or a folder, a GGUF file; "" skips
llm_frame = ["<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"]  # its chat
filter_layer = 22  # its filter layer, counted from 0 (0 or more)
llm_k = 160  # tokens selected (32 or more)
llm_lengths = [320]  # prompts, in tokens; there are sentences for 40000 (100 to 40000)
llm_depths = [0.0, 0.5, 1.0]  # of the needle (0 to 1)
llm_prompts = 2  # prompts a length and depth (1 or more)
llm_new = 24  # tokens of an answer (1 or more)
llm_methods = []  # judged beside GemFilter, as ["All KV"]; a wrong name lists all
llm_layers = []  # further filter layers whose answers are judged (0 or more)

# %% tags=["remove-cell"]
import warnings

warnings.filterwarnings("ignore", message="IProgress")  # progress bars need no widgets

# %% tags=["hide-input", "check"]
import functools
import time
from html import escape
from itertools import groupby
from pathlib import Path
from statistics import fmean

import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.nn.functional as F
from IPython.display import HTML, display
from transformers import LlamaConfig, LlamaForCausalLM

from mvnb import claims, figures, kept_runs, stats, training
from mvnb.data import load_sentiment
from mvnb.models.language import LanguageModelMissing, fast_dtype, load_language_model
from mvnb.papers.gemfilter import needle, theory, token_selection
from mvnb.papers.gemfilter import tables as printed

figures.use_style()
ledger = claims.Ledger("gemfilter")
device, seed = training.pick_device(device), training.fold_seed(seed)
print(f"device: {device.type}")
LINE = figures.COLORS["theory"]
METHODS = ("All KV", "SnapKV", "H2O", "GemFilter", "One-Run")
hues = ("blue", "green", "pink", "orange", "brown")
COLORS = {name: figures.HUES[hue] for name, hue in zip(METHODS, hues)}
MARKS = dict(zip(COLORS, "os^Dv"))

# %% [markdown]
# Parameters that do not fit together are refused here.

# %% tags=["hide-input", "check"]
if train_length % 4:
    raise ValueError(f"train_length must be a multiple of 4, got {train_length}")
if len(test_lengths) < 2 or any(n % 4 for n in test_lengths):
    raise ValueError(f"test_lengths must be two or more, in fours, got {test_lengths}")
if test_lengths[0] != train_length or test_lengths != sorted(set(test_lengths)):
    wanted = f"train_length = {train_length}"
    raise ValueError(f"test_lengths must ascend from {wanted}, got {test_lengths}")
if not {0.0, 1.0} <= set(depths):
    raise ValueError(f"depths must include 0.0 and 1.0, got {depths}")

# %% tags=["hide-input", "check"]
for name, values in (("llm_lengths", llm_lengths), ("llm_depths", llm_depths)):
    if not values:
        raise ValueError(f"{name} must name one or more, got {values}")
if not set(llm_methods) <= set(needle.METHODS):
    among = ", ".join(needle.METHODS)
    raise ValueError(f"llm_methods must be among {among}, got {llm_methods}")
if not all(isinstance(layer, int) for layer in llm_layers):
    raise ValueError(f"llm_layers must be integers, got {llm_layers}")
if len(llm_frame) > 2:
    raise ValueError(f"llm_frame must be two texts at most, got {llm_frame}")
place = Path(language_model).expanduser()
if language_model not in ("", "smollm2-135m-instruct") and not place.exists():
    raise ValueError(f"language_model must be a folder or file, got {language_model!r}")


# %% tags=["hide-input"]
def plain_ticks(ax):
    """The tested lengths, and no powers of ten between them."""
    ax.set_xticks(test_lengths, test_lengths)
    ax.minorticks_off()


stream = functools.partial(training.stream, seed)  # a generator for each purpose


def over_runs(values):
    """Mean and 95 % half-width over runs, each the mean of its prompts."""
    return stats.mean_interval([np.asarray(one, dtype=float).mean() for one in values])


# %% [markdown]
# <a id="15-question"></a>
# ## The question: what is so hard about a long text?
#
# A model that generates text works in two phases. It first reads the prompt of $n$ tokens and stores the keys and values of every layer, the *KV cache*; then it writes token after token, each of which attends to all that is stored. For long prompts both are expensive, the first most of all: it takes time proportional to $n^2$. Methods like SnapKV ([Li et al., 2024](../book/references.bib#li2024snapkv)) and H2O ([Zhang et al., 2023](../book/references.bib#zhang2023h2o)) throw away most of the cache after the prompt has been read. In the chapters before, features carried the answer; here they decide what is read. *Can one save the reading itself?* That needs to know what is important before it has been read, which sounds impossible. It is not, because knowing *where* something stands takes less than knowing *what it says*.
#
# Here is the smallest case. One token, the needle, has an attention score of $\Delta$; $n$ others have independent scores $s_i\sim\mathcal N(0,\sigma^2)$. To *read* the needle, the softmax must put weight on it: $e^\Delta$ must not vanish beside $\sum_ie^{s_i}$. To *find* it, it must be among the $k$ largest.
#
# **Predict before you look.** From a thousand tokens to a million, with $k=n/100$: how much must $\Delta$ grow for reading, and how much for finding?

# %% tags=["hide-input"]
sizes = 10.0 ** np.arange(2.5, 6.1, 0.25)
fig, axes = plt.subplots(1, 2, figsize=(7.5, 3.1), sharex=True)
read = theory.reading_margin(1.0, sizes)
axes[0].plot(sizes, read, color=COLORS["All KV"])
axes[0].annotate("read: half of the weight", (350, 12.8), color=COLORS["All KV"])
for k, label, at in ((1000, "find: top 1,000", (3e4, 0.7)), (0, "top 1 %", (2e3, 3.0))):
    top = np.where(sizes >= 2 * k, k or sizes / 100, np.nan)
    style = {"color": COLORS["GemFilter"], "ls": "--" if k else "-"}
    axes[0].plot(sizes, theory.finding_margin(1.0, sizes, top), **style)
    axes[0].annotate(label, at, color=COLORS["GemFilter"])
axes[0].set(xscale="log", xlabel="tokens $n$", ylabel="margin $\\Delta/\\sigma$")
axes[0].set(title="margin needed", ylim=(0, 15.5))
share = theory.reading_share(6.0, 1.0, sizes)
odds = theory.finding_probability(6.0, 1.0, sizes.round(), (sizes / 100).round())
axes[1].plot(sizes, share, color=COLORS["All KV"])
axes[1].plot(sizes, odds, color=COLORS["GemFilter"])
axes[1].annotate("weight on the needle", (3e3, 0.12), color=COLORS["All KV"])
axes[1].annotate("probability in the top 1 %", (3e3, 0.9), color=COLORS["GemFilter"])
axes[1].set(
    xlabel="tokens $n$", ylim=(0, 1.05), title="at the margin $\\Delta=6\\sigma$"
)
figures.show(
    fig,
    title="Reading needs a margin that grows with the logarithm of the length",
    alt="Left: margin over number of tokens. The line for reading rises from 6 to 14; "
    "that for the top one percent is flat at 2.3; that for the top thousand rises "
    "slowly to 3. Right: at margin six the softmax weight falls from 0.44 to zero "
    "while the probability of being in the top one percent stays at one.",
)

# %% [markdown]
# For reading it must grow by $\log1000\approx7$; for finding it need not grow at all. A layer that can no longer read the needle, because the weights of a million other tokens add up, can still point at it. This is the picture behind the chapter; [below](#15-derivation) it is a theorem.
#
# <a id="15-world"></a>
# ## The worlds: a needle in a haystack
#
# **Prose.** The benchmark of Kamradt ([Kamradt, 2023](../book/references.bib#kamradt2023needle)) hides one sentence, the needle, at a chosen *depth* of a long text, and asks for it: 0 is the beginning and 1 the end. The paper's haystack are essays; ours are sentences of newspaper editorials ([Hutto and Gilbert, 2014](../book/references.bib#hutto2014vader)), joined. Needle, question and frame are the published ones:

# %%
# NBVAL_CHECK_OUTPUT
print(needle.NEEDLE)
print(needle.QUESTION)
for answer in (
    needle.EXPECTED,
    needle.NEEDLE,
    "Eat a sandwich.",
    "Sit in Dolores Park on a sunny day and eat a sandwich.",
    "Go to the museum on a sunny afternoon.",
):
    print(f"{needle.needle_score(answer):.3f}  {answer}")

# %% [markdown]
# The score is the paper's, read off its published code: the share of the expected answer's words that occur in the response, words being what lies between blanks. It has two peculiarities. The twelve expected words contain *a* twice and a set counts it once, so that **no answer can score more than 11/12 = 0.917**; the reported 0.910 is almost perfect. And *sandwich* with a full stop is another word than without one, while an answer that is plainly wrong gets points for *on*, *a* and *sunny*.

# %% tags=["remove-cell"]
every_word = " ".join([needle.EXPECTED, needle.NEEDLE, needle.QUESTION] * 3)
ledger.exact("needle-score-has-a-ceiling", needle.needle_score(every_word))

# %% [markdown]
# **Tokens.** To train a model here, we need a world in which retrieval can be learned within seconds. Its haystack has $n$ tokens of noise (8 kinds). Four slots hold needles `MARK key v1 v2`, with 16 kinds of keys and 16 of values, all different in one prompt. The prompt ends with `QUERY key`, and the answer is the two values behind that key.

# %%
NOISE, KEYS, VALUES = 8, 16, 16
MARK = NOISE + KEYS + VALUES
QUERY, VOCABULARY, NEEDLES = MARK + 1, MARK + 2, 4


def haystack(n, size, g, depth=None):
    """Tokens (size, n), needles (size, 4, 4), their places; the first at `depth`."""
    tokens = torch.randint(NOISE, (size, n), generator=g)
    slots = torch.rand(size, n // 4, generator=g).argsort(1)[:, :NEEDLES]
    if depth is not None:
        wanted = round(depth * (n // 4 - 1))
        slots = torch.where(slots == wanted, slots[:, :1], slots)
        slots[:, 0] = wanted
    keys = torch.rand(size, KEYS, generator=g).argsort(1)[:, :NEEDLES] + NOISE
    values = torch.rand(size, VALUES, generator=g).argsort(1) + NOISE + KEYS
    values = values[:, : 2 * NEEDLES].view(size, NEEDLES, 2)
    marks = torch.full((size, NEEDLES, 1), MARK)
    needles = torch.cat([marks, keys[..., None], values], 2)
    places = 4 * slots[..., None] + torch.arange(4)
    return tokens.scatter(1, places.flatten(1), needles.flatten(1)), needles, places


def training_batch(n, size, g):
    """Haystacks, and behind each a question with its answer for every needle."""
    tokens, needles, _ = haystack(n, size, g)
    order = torch.rand(size, NEEDLES, 1, generator=g).argsort(1).expand(-1, -1, 4)
    asked = torch.cat([torch.full_like(needles[..., :1], QUERY), needles[..., 1:]], 2)
    return torch.cat([tokens, asked.gather(1, order).flatten(1)], 1)


def prompts_at(n, size, depth, g):
    """Prompts (size, n + 2), answers (size, 2), places of the needle (size, 4)."""
    tokens, needles, places = haystack(n, size, g, depth)
    asked = torch.stack([torch.full((size,), QUERY), needles[:, 0, 1]], 1)
    return torch.cat([tokens, asked], 1), needles[:, 0, 2:], places[:, 0]


# %%
def spell(tokens):
    names = [f"n{i}" for i in range(NOISE)] + [f"k{i}" for i in range(KEYS)]
    names += [f"v{i}" for i in range(VALUES)] + ["MARK", "QUERY"]
    return " ".join(names[t] for t in tokens.tolist())


shown, answer, _ = prompts_at(32, 1, 0.5, stream(1))
print(spell(shown[0]))
print("answer:", spell(answer[0]))

# %% [markdown]
# <a id="15-model"></a>
# ## The models and the methods
#
# A Transformer with $m$ layers of $h$ heads and rotary positions ([Su et al., 2024](../book/references.bib#su2024roformer)): in layer $i$, head $j$, token $a$ has a query $q_a$ and a key $k_a$ of $d$ coordinates (both turned by angles proportional to the place of the token), and attends to itself and those before it,
#
# $$
# \mathrm{Attn}(Q,K,V)=\mathrm{softmax}\Bigl(\frac{QK^\top}{\sqrt d}+M\Bigr)V,\qquad M_{ab}=\begin{cases}0&b\le a\\-\infty&b>a.\end{cases}
# $$ (eq-15-attention)
#
# :::{prf:algorithm} GemFilter (Algorithm 2)
# :label: alg-15-gem
#
# **Inputs** a prompt $T$ of $n$ tokens, a filter layer $r$, a number $k$
#
# 1. Run the layers before $r$ on the whole prompt, and compute the queries $Q^{(r,j)}$ and keys $K^{(r,j)}$ of layer $r$. Cache nothing.
# 2. $s=\sum_{j=1}^hQ_n^{(r,j)}K^{(r,j)\top}\in\mathbb R^n$: inner products of the last query with all keys, summed over heads, without softmax or $\sqrt d$; then the average over five neighbours.
# 3. $J$ is the set of the $k$ places with the largest scores, in ascending order.
# 4. Run the whole model on the $k$ tokens $T_J$, at places $0,\dots,k-1$, and go on from there.
# :::
#
# Layers are counted from 0, as in the paper's experiments: with its $r=13$, thirteen whole layers run and the queries and keys of a fourteenth. Steps 2 and 3 in the package ({py:func}`~mvnb.papers.gemfilter.token_selection.gem_filter` and its neighbours), which works on any causal language model of `transformers`:

# %% tags=["remove-input"]
figures.show_code(token_selection.select_tokens)

# %% [markdown]
# | Method | First pass | What remains | Places |
# |---|---|---|---|
# | All KV | all layers | everything | as they were |
# | SnapKV | all layers | per layer and head, the last 32 tokens (4 in the small model, whose question has two) and those that these attend to most (averaged over five) | as they were |
# | H2O | all layers | per layer and head, the last 32 (4) and those that all tokens together attend to most | as they were |
# | GemFilter | layers before $r$ | the *tokens* $T_J$, one set for all layers; read again | $0,\dots,k-1$ |
# | One-Run | all layers | the cache of $J$, in all layers; not read again | as they were |
# | middle row, largest row | layers before $r$ | as GemFilter, with the query of token $n/2$, or with the one whose row of products is longest | $0,\dots,k-1$ |
#
# All keep $k$ tokens. SnapKV, H2O and One-Run read the whole prompt first, so that they save nothing there; and the first token of their answers comes from all of it.
#
# **A filter by hand.** Which layer can find? Let embeddings be one-hot. A first layer attends by position, each token to its predecessor, and stores that token's identity in a second block of coordinates. The next layer's query is the last token's own identity, its keys are the stored predecessors: together an *induction head* ([Olsson et al., 2022](../book/references.bib#olsson2022context)). Its score is 1 exactly where the last token's earlier occurrence was the predecessor. Before it, nothing in the scores knows about the content.


# %%
# NBVAL_CHECK_OUTPUT
def hand_made_scores(tokens):
    """Head-summed scores (layer, n) of the last query in the two layers by hand."""
    n = tokens.shape[-1]
    identity = F.one_hot(tokens, VOCABULARY).double()  # (n, vocabulary)
    place = torch.eye(n, dtype=torch.double)
    before = torch.cat([torch.zeros(1, VOCABULARY).double(), identity[:-1]])
    to_previous = token_selection.row_scores(
        place.roll(-1, 1)[None, None], place[None, None]
    )
    induction = token_selection.row_scores(identity[None, None], before[None, None])
    earlier = -1e-6 * torch.arange(n)  # of equal scores the earlier place
    return torch.cat([to_previous, induction]) + earlier


hits = np.zeros((2, 0))
for depth in (0.2, 0.4, 0.6, 0.8):
    tokens, _, places = prompts_at(200, 25, depth, stream(2))
    chosen = [
        token_selection.select_tokens(hand_made_scores(t), 8, keep_last=2)
        for t in tokens
    ]
    inside = (
        torch.stack(chosen)[..., None] == places[:, None, None, 1:]
    )  # key and values
    hits = np.append(hits, inside.any(2).all(2).T, 1)
by_hand = hits.mean(1)
print("share of prompts whose needle is selected whole:", by_hand, "by layer")

# %% tags=["remove-cell"]
ledger.exact("filter-by-hand-finds", induction=by_hand[1], before=by_hand[0])

# %% [markdown]
# Only the second layer finds. And the average over neighbours is not there to remove noise: it takes along the value behind the token that the head points at.
#
# **The model that is trained** is `transformers`' own Llama ([Grattafiori et al., 2024](../book/references.bib#grattafiori2024llama)) with two layers, two heads and width 64, so that every method above runs on it as on a large one. One thing is changed. That a token carries its predecessor takes training many steps to discover, and many runs never do; so in layer 1 each token has the *key of the token before it* (the smeared keys of ([Olsson et al., 2022](../book/references.bib#olsson2022context)), without the mixing), and the matrix of the keys begins equal to that of the queries. Then retrieval is a matter of dozens of steps. This has a price: a query meets best the key that was made of its own token, so that layer 1 *begins* as an induction head. **Which layer finds is built in here, and not learned.** What training adds to it is measured [below](#15-experiments).


# %%
def small_llama(g):
    """A Llama of two layers; in layer 1 a token has the key of its predecessor."""
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 2}
    sizes |= dict.fromkeys(["bos_token_id", "eos_token_id", "pad_token_id"])
    config = LlamaConfig(vocab_size=VOCABULARY, num_hidden_layers=2, **sizes)
    model = LlamaForCausalLM(config).eval()
    for name, weight in model.named_parameters():  # branches start small beside tokens
        if weight.dim() > 1:
            scale = 0.1 if "o_proj" in name or "down_proj" in name else 1.0
            std = 1.0 if "embed" in name else scale * weight.shape[-1] ** -0.5
            weight.data = std * torch.randn(weight.shape, generator=g)
    attention, last = model.model.layers[1].self_attn, {}
    attention.k_proj.weight.data = attention.q_proj.weight.data.clone()

    def of_predecessor(layer, args, keys):
        one_more = keys.shape[1] == 1  # (batch, place, width)
        before = last["key"] if one_more else torch.zeros_like(keys[:, :1])
        last["key"] = keys[:, -1:].detach()
        return torch.cat([before, keys[:, :-1]], 1)

    attention.k_proj.register_forward_hook(of_predecessor)
    return model


# %%
def retrieval_loss(model, tokens):
    """Cross-entropy of the values of four answered questions at the end."""
    length = tokens.shape[1]
    asked = torch.arange(length - 16, length).view(4, 4)[:, 2:].flatten()
    logits = model(tokens[:, :-1]).logits[:, asked - 1]
    return F.cross_entropy(logits.flatten(0, 1), tokens[:, asked].flatten())


# %% [markdown]
# Embeddings have size one, and branches begin at a tenth of theirs, so that layer 1 meets tokens and not the noise of an untrained layer 0. In the first two thirds of the steps the haystack has 16 tokens, all of them needles; in the rest 16 to `train_length`, with a learning rate that falls to zero.


# %%
def schedule(step):
    fall = (steps - step) / (0.3 * steps)
    return step_size * min(1.0, (step + 1) / 25, max(0.02, fall))


def lengths_at(step):
    late = [16, train_length // 2, 3 * train_length // 4, train_length]
    return 16 if step < 0.65 * steps else late[step % 4] // 4 * 4


def batches(step):
    n = lengths_at(step)
    rows = [training_batch(n, batch if n <= 32 else batch // 2, g) for g in sources]
    return (torch.stack(rows).to(device),)


starts = [training.generators(seed + r, 1)[0] for r in range(replicas)]
sources = [stream(100 + r) for r in range(replicas)]
models = [small_llama(g).to(device) for g in starts]
run = training.fit(
    training.stacked(models[0], retrieval_loss),
    training.stack_modules(models),
    batches,
    steps=steps,
    optimizer=training.Adam(schedule, beta2=0.98, weight_decay=0.01),
    log_at=training.log_steps(steps, 9),
)
for r, model in enumerate(models):
    model.load_state_dict({k: v[r] for k, v in run.params.items()}, strict=False)
print("step   ", *[f"{s:6}" for s in run.steps])
for r, losses in enumerate(run.log["loss"].T):
    print(f"model {r}", *[f"{x:6.2f}" for x in losses.tolist()])

# %% [markdown]
# The loss starts at 4.2, above that of guessing among all 42 tokens ($\log42=3.74$), is below that of guessing among the 16 values ($\log16=2.77$) after 15 steps, and falls steeply to nearly zero before step 30. We come back to these models after the theory.
#
# <a id="15-derivation"></a>
# ## The derivation
#
# ### Finding is easier than reading
#
# :::{prf:theorem} Margins for finding and for reading (ours)
# :label: thm-15-find
#
# Let the needle's score be $\Delta$, and those of $n$ other tokens independent $\mathcal N(0,\sigma^2)$. Let $q=\bar\Phi(\Delta/\sigma)$, where $\bar\Phi=1-\Phi$, and for $k\le n/2$ let $z$ be the number with $\bar\Phi(z)=k/n$.
#
# (a) *Finding.* The needle is among the $k$ largest scores with probability $\Pr[\mathrm{Bin}(n,q)\le k-1]$. At $\Delta=\sigma z\le\sigma\sqrt{2\log(n/k)}$ the expected number of scores above it is $k$; at $\Delta=\sigma z'$ with $\bar\Phi(z')=\frac k{2n}$ it is found with probability at least $1-e^{-k/6}$.
#
# (b) *Reading.* Its weight $p=e^\Delta/(e^\Delta+\sum_ie^{s_i})$ has
#
# $$
# \mathbb E\,p\ \ge\ \frac1{1+n\,e^{\sigma^2/2-\Delta}} ,
# $$ (eq-15-read)
#
# and $p$ tends to the right-hand side in probability as $n\to\infty$ with $\Delta-\log n$ fixed. Half of the weight needs $\Delta=\log n+\sigma^2/2$.
#
# (c) *Reading again.* If the $k$ tokens, the needle and $k-1$ others, are read again with new, independent scores of the same law, half of the weight needs $\Delta=\log(k-1)+\sigma^2/2$ in the sense of (b), for large $k$ about $\log k+\sigma^2/2$. If they are read by the very scores that selected them, then as $n\to\infty$ with $k/n$ fixed the noise that is left has the share
#
# $$
# \Phi(\sigma-z)\ \ge\ k/n
# $$ (eq-15-survive)
#
# of its weight before.
# :::
#
# :::{prf:proof}
# Finding compares the needle with the $k$-th largest of the other scores, which for large $n$ depends on $k/n$ and not on $n$ itself; reading compares it with the sum of their exponentials, which grows with their number. (a) The needle is found exactly if fewer than $k$ of the others exceed it, and their number is binomial with $q$. Its mean is $nq=k$ at $\Delta=\sigma z$; $\bar\Phi(x)\le e^{-x^2/2}$ gives $z\le\sqrt{2\log(n/k)}$. At $z'$ the mean is $k/2$, and by Chernoff's bound the probability of reaching twice the mean is at most $e^{-(k/2)/3}$. (b) $x\mapsto1/(1+xe^{-\Delta})$ is convex for $x\ge0$, and $\mathbb Ee^{s}=e^{\sigma^2/2}$; Jensen's inequality. $\frac1n\sum_ie^{s_i}\to e^{\sigma^2/2}$ by the law of large numbers, so $p\to1/(1+e^{\sigma^2/2-(\Delta-\log n)})$. (c) The first half is (b) with $k-1$. For the second, the $k$ largest are in the limit those above $\sigma z$, and with $s=\sigma x$ completing the square gives $\mathbb E[e^s;\,s>\sigma z]=\int_z^\infty e^{\sigma x-x^2/2}\frac{dx}{\sqrt{2\pi}}=e^{\sigma^2/2}\,\bar\Phi(z-\sigma)$; divide by $\mathbb Ee^s$. It is at least $\bar\Phi(z)=k/n$.
# :::
#
# So the margin for finding a token stays constant when $k$ grows with $n$, and the margin for reading it grows with $\log n$, by (c) with $\log k$ after a selection. That is one of two reasons why GemFilter can answer *better* than the model that has read everything. The other is where the tokens stand: in the second run no two tokens are farther apart than $k+t$ when $t$ tokens are generated, so that rotary angles stay where they were in training. One-Run has the first advantage, for all but the first token, and not the second.
#
# :::{explorer} 15-find-and-read
# :alt: Left, three curves over the margin. The probability of being found jumps to one near 2.3, the weight on the needle after reading the selected tokens again rises around 7, its weight among all tokens around 12. Right, margin needed over the number of tokens, flat for finding, two parallel rising lines for reading all tokens and for reading the selected ones.
#
# *Predictions:* from a thousand tokens to a million, with $\Delta=6\sigma$ and one in a hundred kept, the weight among all tokens vanishes and the probability of being found does not move; the two lines for reading stay $\log(n/k)$ apart; and the fewer tokens are kept the better they can be read, until the needle is lost, and then it is lost all at once.
# :::
#
# The theorem is about one token and independent scores. Averaging over $l$ neighbours divides $\sigma$ by $\sqrt l$ and the score of a single loud token by $l$: it *costs* a factor $\sqrt l$ in margin, and buys the neighbours.

# %%
# NBVAL_CHECK_OUTPUT
trials = np.random.default_rng(seed).standard_normal((check_draws, 2000))
settings = [(2.3, 20), (2.0, 45), (1.0, 320)]
gaps = []
for margin, k in settings:
    seen = ((trials > margin).sum(1) < k).mean()
    stated = float(theory.finding_probability(margin, 1.0, 2000, k))
    error = np.sqrt(max(stated * (1 - stated), 1 / check_draws) / check_draws)
    gaps.append(abs(seen - stated) / error)
weights = np.exp(trials)
share = 1 / (1 + weights.sum(1) * np.exp(-8.0))
gaps.append(share.mean() - theory.reading_share(8.0, 1.0, 2000))
loud = np.sort(weights, 1)[:, -200:].sum(1) / weights.sum(1)
gaps.append(loud.mean() / theory.surviving_noise(1.0, 2000, 200) - 1)
assert max(gaps[:3]) < 4, "finding: more than four standard errors off"
assert -1e-3 < gaps[3] < 0.02, "reading: not just above Jensen's bound"
assert abs(gaps[4]) < 0.03, "noise that survives: more than 3 % off"
print("finding, reading and surviving noise are as the theorem says")

# %% [markdown]
# ### Work and memory
#
# :::{prf:theorem} Operations on the prompt (after Theorem 9.3)
# :label: thm-15-work
#
# Let a layer have $w$ weights in matrices, $h$ heads of dimension $d$ and $h_{kv}\le h$ key heads, in a model of width $D$, and count all $n^2$ pairs of tokens, also those that the mask leaves out. Reading $n$ tokens takes $m(2wn+4hdn^2)$ operations with all layers. GemFilter with filter layer $r$ (from 0) takes
#
# $$
# r\,(2wn+4hdn^2)+2Dd\,(h+2h_{kv})\,n+2hd\,n\;+\;m(2wk+4hdk^2) .
# $$ (eq-15-work)
#
# The ratio tends to $m/r$ for $n\to\infty$ at fixed $k$, and is below $m/r$ always.
# :::
#
# :::{prf:proof}
# Each weight meets each token once, a multiplication and an addition. Scores are $n^2$ inner products of length $d$ in each head, values as many additions of vectors. Layer $r$ stops after the projections (values, too, which the layer computes along with queries and keys), and one query meets $n$ keys. Dividing by $n^2$ and letting $n\to\infty$ leaves $4hd\,m$ over $4hd\,r$; all other terms of {eq}`eq-15-work` make the denominator larger than $r/m$ of the numerator.
# :::
#
# *Generation.* A token that is generated beside $N$ cached ones takes $m(2w+4hd(N+1))$. The theorem's table has $mh(nt+t^2)d$ for $t$ tokens with All KV, $mh(kt+t^2)d$ with an evicted cache and $mh(k^2+t^2)d$ with GemFilter, whose second run it books here; so its case study has $n:k:k$ for $n\gg k\approx t$. That is the ratio of the attention alone.
#
# The thesis states $\Theta(mhn^2d)$ for $n\ge d$, with $\Theta(nd)$ for all else in a head. The matrices cost $2wn$, and with $w\ge4(hd)^2$ (attention alone) they outweigh the rest until $n$ is of the order of the *whole* width $hd$, not of one head's: for LLaMA 3.1 8B until $w/(2hd)\approx27{,}000$ tokens. Nothing is lost, since GemFilter saves on both in the same proportion. We let PyTorch count, and put in the paper's three models at 8,192, 32,768 and 131,072 tokens, $k=1024$.

# %%
# NBVAL_CHECK_OUTPUT
shape = theory.Shape(8, 4, 4, 32, 128, 344)
config = LlamaConfig(
    vocab_size=VOCABULARY,
    hidden_size=shape.width,
    intermediate_size=shape.inner,
    num_hidden_layers=shape.n_layers,
    num_attention_heads=shape.n_heads,
    attn_implementation="eager",
)
timed = LlamaForCausalLM(config).eval()  # its weights do not matter here
prompt = torch.zeros(1, 300, dtype=torch.long)
counted = token_selection.counted_flops(lambda: timed.model(prompt))
with torch.inference_mode():
    cache = timed.model(prompt, use_cache=True).past_key_values
held = sum(one.keys.numel() + one.values.numel() for one in cache.layers)
print(f"operations: {counted:,} counted, {theory.prefill_flops(shape, 300):,} stated")
print(f"cache:      {held:,} numbers, {theory.cached_numbers(shape, 300):,} stated")
for name, (one, r) in theory.PAPER_MODELS.items():
    cheaper = [theory.speed_up(one, n, 1024, r) for n in (8192, 32768, 131072)]
    shown = ", ".join(f"{x:.2f}" for x in cheaper)
    print(f"{name:<16} {shown} times cheaper (m/r = {one.n_layers / r:.2f})")
big = theory.LLAMA_31_8B
step = [theory.step_flops(big, n) for n in (131072, 1024)]
print(f"one generated token, 131,072 cached over 1,024: {step[0] / step[1]:.1f}")

# %% tags=["remove-cell"]
ledger.exact(
    "operations-and-cache-as-stated",
    operations=counted / theory.prefill_flops(shape, 300),
    cache=held / theory.cached_numbers(shape, 300),
)
ledger.exact("speed-up-on-the-prompt", theory.speed_up(big, 131072, 1024, 13))
models_of_paper = theory.PAPER_MODELS.values()
speeds = [theory.speed_up(one, 131072, 1024, r) for one, r in models_of_paper]
ledger.exact("speed-up-of-all-three-models", least=min(speeds), most=max(speeds))

# %% [markdown]
# The work on the prompt falls by nearly $m/r$ in all three, and never by more: for Mistral Nemo and Phi that is 2.1 and 1.7, where the caption of Figure 9.6 repeats LLaMA's 2.4. And a generated token of LLaMA becomes six times cheaper, not $n/k=128$ times: the matrices remain.
#
# Both ways are then run and counted: the same network, with random weights, a prompt of 1,200 tokens, $r=3$ of 8 layers and $k=100$. A clock says the same less exactly, since kernels that skip the masked half of the attention make what is not quadratic weigh more: processor time is printed (median ratio of five pairs of runs in turn) and judged by nothing.

# %%
timed.set_attn_implementation("sdpa")
long_prompt = torch.zeros(1, 1200, dtype=torch.long)
ways = [
    lambda: token_selection.all_kv(timed, long_prompt, 1),
    lambda: token_selection.gem_filter(timed, long_prompt, 1, 100, 3),
]
seconds = np.zeros((6, 2))
for turn in seconds:
    for i, way in enumerate(ways):
        began = time.process_time()
        way()
        turn[i] = time.process_time() - began
print(f"processor time: {np.median(seconds[1:, 1] / seconds[1:, 0]):.1f} of the whole")

# %%
# NBVAL_CHECK_OUTPUT
work = [token_selection.counted_flops(way) for way in ways]
work_ratio = work[1] / work[0]
stated_ratio = 1 / theory.speed_up(shape, 1200, 100, 3)
print(f"operations: {work_ratio:.4f} of the whole counted, {stated_ratio:.4f} stated")

# %% tags=["remove-cell"]
ledger.exact("prompt-takes-less-work", work_ratio / stated_ratio)

# %% [markdown]
# **Memory.** By the theorem's table (with the $n$ that its first entry lacks) the cache of All KV grows as $2mh_{kv}nd$. SnapKV holds one layer's $2h_{kv}nd$ at a time while reading, and GemFilter too. The difference between these two is that the layers after $r$ need not be *loaded* during the first pass. The paper reports 30 % less than SnapKV and 70 % less than All KV.

# %% tags=["hide-input"]
grid = 2 ** np.arange(12, 18)
fig, axes = plt.subplots(1, 2, figsize=(7.5, 3.1))
for k, style in ((1024, "-"), (4096, "--")):
    curve = theory.speed_up(big, grid, k, 13)
    axes[0].plot(grid, curve, style, color=COLORS["GemFilter"])
    axes[0].annotate(
        f"$k={k}$", (grid[0], curve[0]), (4, -12), textcoords="offset points"
    )
axes[0].axhline(32 / 13, color=LINE, lw=1, ls=":")
axes[0].annotate("$m/r$", (4500, 2.5), color=LINE)
axes[0].set(xscale="log", xlabel="tokens $n$", ylabel="ratio of operations")
axes[0].set(title="work on the prompt: All KV / GemFilter", ylim=(0.4, 2.8))
for name in ("All KV", "SnapKV", "GemFilter"):
    curve = 2e-9 * theory.peak_memory(big, name, grid, 1024, 50, 13)
    axes[1].plot(grid, curve, MARKS[name] + "-", color=COLORS[name], ms=4)
axes[1].annotate("All KV", (3.2e4, 22), color=COLORS["All KV"])
axes[1].annotate("SnapKV and GemFilter", (5e3, 10.5), color=COLORS["GemFilter"])
axes[1].set(xscale="log", xlabel="tokens $n$", ylabel="GB", ylim=(0, 33))
axes[1].set(title="weights and cache, 16 bits")
figures.show(
    fig,
    title="The work falls by almost m/r; only the cache of All KV takes much memory",
    alt="Left: ratio of operations over prompt length for two k, rising to the dotted "
    "line at 2.46. Right: memory over length; All KV rises from 15 to 31 gigabytes, "
    "SnapKV and GemFilter stay together at 14.",
)

# %%
# NBVAL_CHECK_OUTPUT
n = 122_880
saved, saved_all = {}, {}
for name, (one, r) in theory.PAPER_MODELS.items():
    gem = theory.peak_memory(one, "GemFilter", n, 1024, 50, r, loaded=False)
    for other, less in (("SnapKV", saved), ("All KV", saved_all)):
        less[name] = float(1 - gem / theory.peak_memory(one, other, n, 1024, 50, r))
    row = f"{saved[name]:.1%} less than SnapKV, {saved_all[name]:.1%} than All KV"
    print(f"{name:<16} peak of both phases: {row}")
first_pass = 14 * big.layer_weights + 2 * 8 * 128 * n
saved_first = 1 - first_pass / theory.peak_memory(big, "SnapKV", n, 1024, 50, 13)
print(f"LLaMA 3.1 8B     first pass alone:    {saved_first:.1%} less than SnapKV")

# %% tags=["remove-cell"]
ledger.exact("memory-by-the-theorem", max(saved.values()))
ledger.exact("memory-beside-all-kv", saved_all["LLaMA 3.1 8B"])

# %% [markdown]
# In the figure all weights are held all the time, as in the published code; in the numbers printed above, the first pass of GemFilter holds only the $r+1$ layers that it needs, as in the theorem. The table does not give the 30 % for any of the three, nor, with grouped keys, the 70 % less than All KV for LLaMA and Mistral Nemo (as printed, with $h$ heads of keys, it gives 81 and 78 %). In its own terms GemFilter's peak is in the second phase, in which all weights are there, and not in the prompt phase as the text says: the prompt's weighs more only beyond two million tokens (Phi, whose keys are not shared by heads: 256,000). Only if the phases are measured apart, and layers after $r$ are really absent in the first, is more than 30 % saved. What the paper measured contains what the table leaves out: embeddings, and the activations of a long prompt, which are larger than a layer's keys.
#
# <a id="15-experiments"></a>
# ## The experiments
#
# ### A small model, on prompts longer than it knows
#
# *What the paper did.* Needles at depths from 0 to 100 % in prompts of up to 60,000 and 120,000 tokens, with $k=1024$: GemFilter far above All KV and SnapKV (its Figure 9.4). *What is done here.* The same grid for the trained models, with $k=n/8$ but at least 16. The filter layer is 1, the first that can find. Two options of the package are used: the question is always kept, and scores are summed after the softmax; what they are worth is measured below, on prompts of the second length.
#
# *Prediction.* By {prf:ref}`thm-15-find`, the longer the prompt the worse All KV reads; finding fails later. The methods that evict from a cache keep the needle, but at its distance. And since layer 1 finds by construction, the same models *before training* are put beside it: what has training added?


# %%
def right(answer, values):
    """Share of the two values that are right, by prompt."""
    return (answer.tokens == values).double().mean(1).cpu().numpy()


def answers_of(model, n, g, ablate):
    """Shares of right values (prompt,) by method, and the places of needles."""
    parts = [prompts_at(n, test_prompts, depth, g) for depth in depths]
    tokens, values, places = (torch.cat(part).to(device) for part in zip(*parts))
    k, gem = max(16, n // 8), token_selection.gem_filter
    options = {"softmax": True, "keep_last": 2}
    ways = {layer: (gem, k, layer, options) for layer in range(2)}
    ways["All KV"] = (token_selection.all_kv,)
    ways["SnapKV"] = (token_selection.snap_kv, k, 4)
    ways["H2O"] = (token_selection.h2o, k, 4)
    ways["One-Run"] = (gem, k, 1, options | {"one_run": True})
    if ablate:
        for name, change in ABLATIONS.items():
            ways[name] = (gem, k, 1, options | change)
    found = {}
    for name, (method, *rest) in ways.items():
        extra = rest.pop() if rest and isinstance(rest[-1], dict) else {}
        found[name] = right(method(model, tokens, 2, *rest, **extra), values)
    return found, tokens, places


ABLATIONS = {
    "no softmax": {"softmax": False},
    "no pooling": {"pool": 1},
    "question not kept": {"keep_last": 0},
    "middle row": {"row": "middle"},
    "largest row": {"row": "largest"},
}


# %%
def layer_view(model, tokens, places):
    """By layer: distance to the needle (layer, prompt), weight on it, needles kept."""
    scores = token_selection.filter_scores(model, tokens, range(2), softmax=True)
    n = tokens.shape[1] - 2
    kept = token_selection.select_tokens(scores, max(16, n // 8), keep_last=2)
    gap = (kept[..., None] - places[:, None]).abs()  # (layer, prompt, k, 4)
    at = places.expand(2, -1, -1)
    weight = scores.gather(2, at).sum(2) / model.config.num_attention_heads
    return gap.amin((2, 3)).cpu(), weight.cpu(), (gap.amin(2) == 0).all(2).cpu()


# %%
small = {n: [] for n in test_lengths}  # by length and replica: answers by method
views, built = ({n: [] for n in test_lengths} for _ in range(2))  # trained, before
for r, model in enumerate(models):
    at_first = small_llama(training.generators(seed + r, 1)[0]).to(device)
    for n in test_lengths:
        found, tokens, places = answers_of(
            model, n, stream(200 + r), n == test_lengths[1]
        )
        small[n].append(found)
        views[n].append(layer_view(model, tokens, places))
        built[n].append(layer_view(at_first, tokens, places))
distance = np.array([[one[0].double().mean(1) for one in views[n]] for n in views])
by_layer = np.array(
    [[[one[i].mean() for i in range(2)] for one in small[n]] for n in small]
)  # (length, replica, layer)
covering = distance[0].mean(0)  # by layer, at the trained length
print("mean distance to the needle at the trained length:", covering.round(2))
weight, whole, weight_built, whole_built = (  # of layer 1: (mean, half-width)
    {n: over_runs([one[i][1] for one in when[n]]) for n in test_lengths}
    for when in (views, built)
    for i in (1, 2)
)
for n in test_lengths:
    found = f"whole {whole_built[n][0]:.2f} -> {whole[n][0]:.2f}"
    on_it = f"weight {weight_built[n][0]:.2f} -> {weight[n][0]:.2f}"
    print(f"layer 1 before -> after training, n = {n:>3}: needle {found}, {on_it}")

# %% tags=["hide-input"]
fig, axes = plt.subplots(1, 2, figsize=(7.5, 3.1))
for i, (n, tone) in enumerate(zip(test_lengths, figures.shades(len(test_lengths)))):
    for ax, values in zip(axes, (distance[i], by_layer[i])):
        ax.plot(range(2), values.mean(0), "os^Dv"[i % 5] + "-", color=tone)
        ax.plot(np.tile(range(2), (replicas, 1)).T, values.T, ".", color=tone, ms=5)
    axes[0].annotate(
        f"$n={n}$", (-0.05, distance[i, :, 0].mean()), color=tone, ha="right"
    )
axes[0].set(ylabel="tokens", title="nearest selected token to the needle")
axes[1].set(ylabel="values right", ylim=(0, 1.05), title="answers of GemFilter")
for ax in axes:
    ax.set(xlabel="filter layer", xticks=range(2), xlim=(-0.5, 1.2))
figures.show(
    fig,
    title="Layer 0 does not find the needle, layer 1 does",
    alt="Left: distance from the nearest selected token to the needle by filter layer "
    "and length, larger at layer 0; at layer 1 zero for all but the longest prompts, "
    "whose mean is a few tokens. Right: share of right "
    "values, below one half at layer 0 and near 1 at layer 1. Dots are runs.",
)

# %% [markdown]
# *Search* and *found*, two of the paper's three stages; the third, in which later layers turn to the answer, needs more layers than this model has. Layer 0 misses by 2 to 15 tokens on average and not by more, since an eighth to a third of the prompt is kept anyway, and with it often a part of the needle. Layer 1 hardly misses; the mean of five tokens at $n=480$ comes from few needles, which it misses by dozens of tokens.
#
# That it is layer 1 was built in. Before any training it already selects most needles whole, over eight in ten at the trained length and about seven at the longest, with 0.3 and 0.05 of its weight on them. Training makes it certain where it was trained, with nearly all of its weight on the needle, and at the longest length it finds most of the needles that were missed before; and it teaches the model to read, which as built it cannot do at all. So the figure shows how a layer that finds is recognised and what it is worth. It does not show that training makes one.

# %% tags=["hide-input"]
fig, axes = plt.subplots(1, 5, figsize=(7.5, 2.7), sharey=True)
named = {name: 1 if name == "GemFilter" else name for name in COLORS}
percent = [f"{100 * depth:.0f}" for depth in depths]
tables = {}
for ax, (name, key) in zip(axes, named.items()):
    cells = [np.mean([one[key] for one in small[n]], 0) for n in test_lengths]
    tables[name] = np.array(cells).reshape(len(test_lengths), len(depths), -1).mean(2).T
    style = {"words": ".2f", "limits": (0, 1), "cmap": "cividis"}
    figures.heatmap(ax, tables[name], percent, test_lengths, **style)
    ax.set(title=f"{name} {tables[name].mean():.2f}", xlabel="length")
axes[0].set_ylabel("depth (%)")
figures.show(
    fig,
    title="Far needles are lost by all methods that leave them where they are",
    alt="Five heat maps of the share of right values by length and depth. All KV, "
    "SnapKV and One-Run are near 1 at the trained length and at depth 100, and fall at "
    "small depths in long prompts; H2O is near one half at all depths between; "
    "GemFilter stays near 1 except at depth 0 of the longest prompts.",
)

# %% tags=["remove-cell"]
first, beyond, far = *test_lengths[:2], test_lengths[-1]
shallow = np.repeat(np.array(depths) <= 0.25, test_prompts)


def gap(n, name, other, where=slice(None)):
    """Mean difference of two methods over the prompts of a length, by run."""
    return np.array([(one[name] - one[other])[where].mean() for one in small[n]])


ledger.mean("as-good-at-known-lengths", gap(first, 1, "All KV"))
ledger.mean("better-beyond-known-lengths", gap(far, 1, "All KV"))
over = {name: gap(far, 1, name) for name in ("SnapKV", "H2O")}
ledger.mean("better-than-eviction", **over)
ledger.mean("one-run-loses-far-needles", gap(far, 1, "One-Run", shallow))
before, at_one = distance[0].T
ledger.mean(
    "layer-finds-the-needle",
    gain=gap(first, 1, 0),
    distance=at_one,
    distance_before=before,
)
surer = [
    [view[2][1].double().mean() for view in when[n]]
    for when in (views, built)
    for n in views
]
trained, untrained = np.array(surer).reshape(2, len(views), replicas).mean(1)
ledger.mean("training-makes-the-filter-surer", trained - untrained)

# %% [markdown]
# The number beside each name is the mean of its panel. Read the columns of one length from the bottom to the top. At the end of the haystack the needle is near the question, and every method answers. (H2O is weak in between at any length: it keeps what all tokens attend to, and only the question knows which key will be asked for.) Towards the beginning All KV fails more and more, on distances that it has hardly met or never. SnapKV, H2O and One-Run throw tokens away, which helps little: what they keep stays as far away as it was, and has been read already. GemFilter puts what it keeps side by side. It loses many needles only at the very beginning of the longest prompts (0.56), where its filter has to bridge the same distance.
#
# ### Which part does it
#
# *Prediction.* Without pooling the key's neighbours are lost, and with them the values. The middle row knows nothing of the question. {prf:ref}`thm-15-find` says that the weight on the needle falls with the length while the needle is still found.

# %% tags=["hide-input"]
fig, axes = plt.subplots(1, 2, figsize=(7.5, 3.2), width_ratios=(1.5, 1))
names = {1: "GemFilter as above"} | {name: name for name in ABLATIONS}
mean, half = zip(*(over_runs([one[key] for one in small[beyond]]) for key in names))
axes[0].errorbar(mean, [*names.values()], xerr=half, color=LINE, fmt="o", capsize=4)
axes[0].set(xlim=(0, 1.05), xlabel=f"values right, $n={beyond}$")
axes[0].invert_yaxis()
for values, color, style in (
    (weight, COLORS["All KV"], "o-"),
    (whole, COLORS["GemFilter"], "D-"),
    (weight_built, COLORS["All KV"], "o:"),
    (whole_built, COLORS["GemFilter"], "D:"),
):
    mean, half = zip(*values.values())
    axes[1].errorbar(test_lengths, mean, half, color=color, fmt=style, capsize=3)
axes[1].annotate("needle selected whole", (first, 1.05), color=COLORS["GemFilter"])
axes[1].annotate("weight on it", (first, 0.42), color=COLORS["All KV"])
axes[1].set(
    xscale="log", ylim=(0, 1.15), xlabel="length", title="layer 1 (dotted: untrained)"
)
plain_ticks(axes[1])
figures.show(
    fig,
    title="The last row, pooling and the question are all needed",
    alt="Left: share of right values at the second length for GemFilter and five "
    "variants; GemFilter is near 1, without softmax lower, without pooling, without "
    "the question and with either other row at most 0.3. Right: over the length the "
    "softmax weight on the needle falls from 1 to 0.6 while the share of needles "
    "selected whole stays near 0.9 or above; dotted, before training, weight from 0.3 "
    "to 0.05 and needles from 0.9 to 0.7.",
)

# %% tags=["remove-cell"]
rows = {name: gap(beyond, 1, f"{name} row") for name in ("middle", "largest")}
ledger.mean("last-row-is-needed", **rows)
ledger.mean("pooling-is-needed", gap(beyond, 1, "no pooling"))
ledger.mean("question-keeps-itself", gap(beyond, 1, "question not kept"))
ledger.mean("raw-scores-suffice", gap(beyond, 1, "no softmax"))
by_run = {  # of layer 1: weight on the needle and share selected whole (run,)
    n: np.array([[x[1].double().mean() for x in one[1:]] for one in views[n]]).T
    for n in (first, far)
}
lost_weight, lost_needles = by_run[far] / by_run[first]
ledger.mean("found-where-it-is-read-less", lost_needles - lost_weight)

# %% [markdown]
# All three parts of the selection matter. Two options that the paper does without are needed here: in a model of two heads the raw products of one swamp the other, where a softmax gives both the same weight; and nothing makes a question select itself. The paper finds the question among its selected tokens, and so shall we in a model with more heads. On the right is one of two reasons: the weight falls with the length, and the needle is still found. One-Run shares this reason, and it helps little there.
#
# ### A real model, as far as it reaches
#
# *What the paper did.* LLaMA 3.1 8B, Mistral Nemo 12B and Phi 3.5 Mini, whose context is 128,000 tokens. *What is done here.* SmolLM2 ([Ben Allal et al., 2025](../book/references.bib#allal2025smollm2)) with 135 million parameters and 30 layers, weights kept in four bits; the published prompt in the model's own chat frame (in the bare one it ends its answer before it begins), 160 tokens kept, the question among them. At the lengths that we can afford All KV answers everything, so that *the paper's regime, in which All KV fails and GemFilter does not, is not reached*. What can be seen is which layers find, and what a selection costs.
#
# *Prediction.* From the paper: nothing in the first layers, the needle from 40 to 60 % of the depth on. The filter layer, 22, was chosen in pilots on other prose.


# %%
test = needle.NeedleTest(
    k=llm_k,
    filter_layer=filter_layer,
    depths=llm_depths,
    n_new=llm_new,
    frame=llm_frame,
    methods=llm_methods,
    layers=llm_layers,
)
sentences, lm = None, None
try:
    if not language_model:
        raise LanguageModelMissing("no language model was asked for")
    sentences = load_sentiment("editorials").texts
    lm = load_language_model(language_model, fast_dtype(device), device)
    n_layers = lm.model.config.num_hidden_layers
    if not all(0 <= x < n_layers for x in (filter_layer, *llm_layers)):
        wrong = f"{filter_layer} and {llm_layers}"
        raise ValueError(
            f"filter_layer and llm_layers: 0 to {n_layers - 1}, got {wrong}"
        )
    print(f"{lm.name}: {lm.n_parameters / 1e6:.0f} million parameters")
except (LanguageModelMissing, FileNotFoundError) as error:
    if language_model not in ("", "smollm2-135m-instruct"):  # a name that was typed
        raise
    print(f"not run here, but kept from a longer run: {error}")

# %%
live, g = {}, stream(50)
if lm:
    for length in llm_lengths:
        prompts = test.draw(lm.encode, sentences, length, llm_prompts, g)
        live[length] = reading = test.read(lm, prompts)
        print(
            f"{length} tokens, {len(prompts)} prompts; best score {needle.BEST_SCORE:.3f}:"
        )
        for name, scores in reading.scores.items():
            label = f"GemFilter, layer {name}" if name.isdigit() else name
            print(f"  {label}: {fmean(scores):.2f}")

# %% [markdown]
# This is what the model reads the second time, in the prompt of which most of the needle was selected and in the one of which least was: selected tokens are bold, the others faint. Since one set of tokens serves all layers, one can look at it before the answer is written, which the paper counts among the advantages.


# %%
def highlight(lm, tokens, kept):
    """A prompt as text, selected tokens bold on yellow, the others faint."""
    chosen = torch.zeros(len(tokens), dtype=torch.bool)
    chosen[kept.cpu()] = True
    spans = []
    for on, run_ in groupby(range(len(tokens)), key=lambda i: bool(chosen[i])):
        text = escape(lm.decode([int(tokens[i]) for i in run_]))
        style = "<mark><b>{}</b></mark>" if on else '<span style="opacity:.6">{}</span>'
        spans.append(style.format(text))
    shown = "white-space:pre-wrap;font-size:.8em;line-height:1.4"
    return HTML(f'<pre style="{shown}">{"".join(spans)}</pre>')


if lm:
    needle_kept, places = reading.share[filter_layer], reading.places
    by_share = needle_kept.argsort()
    best_read = int(by_share[-1])
    for i in by_share[[-1, 0]].tolist():
        share, score = needle_kept[i], reading.scores[str(filter_layer)][i]
        print(f"{share:.0%} of the needle selected, score of the answer {score:.2f}:")
        display(highlight(lm, prompts[i].tokens, places[filter_layer, i]))

# %% tags=["hide-input"]
if lm:
    one = prompts[best_read]
    tokens = one.tokens[None].to(device)
    evicted = token_selection.snap_kv(lm.model, tokens, 1, llm_k).kept[:, 0].cpu()
    fig, axes = plt.subplots(1, 2, figsize=(7.5, 3.2), sharex=True, sharey=True)
    for ax, kept, name in (
        (axes[0], places[:, best_read, None], "GemFilter: one set a layer"),
        (axes[1], evicted, "SnapKV: one set a key head"),
    ):
        for head in kept.unbind(1):  # (layer, k)
            at = torch.arange(len(kept))[:, None].expand_as(head)
            tone = COLORS[name.split(":")[0]]
            ax.plot(at.flatten(), head.flatten(), ".", color=tone, ms=1.5)
        ax.axhspan(one.start, one.stop, color=COLORS["All KV"], alpha=0.25, lw=0)
        ax.annotate("needle", (n_layers + 0.3, one.stop), color=COLORS["All KV"])
        ax.set(title=name, xlabel="layer", xlim=(-1, n_layers + 6))
    axes[0].axvline(filter_layer, color=LINE, lw=0.8, ls=":")
    axes[0].set(ylabel="place in the prompt", ylim=(len(one.tokens), 0))
    figures.show(
        fig,
        title="Places that are selected, layer by layer",
        alt="Two scatter plots of selected places over layers, the needle as a band. "
        "Left, one set a layer: the end of the prompt and most of the needle near it in "
        "nearly all layers, scattered places before; a dotted line marks "
        "layer 22. Right, SnapKV's sets of three key heads, spread over the prompt.",
    )

# %% tags=["remove-cell"]
finds = "language-model-has-a-layer-that-finds"
if lm:
    shares = torch.cat([one.share for one in live.values()], 1).numpy()
    early = shares[: n_layers // 3].mean(0)
    ledger.mean(finds, shares[filter_layer] - early)
else:
    ledger.not_run(finds, "the language model or the sentences are not there")

# %% [markdown]
# The figure shows the first of these two prompts. On the left is the set that each layer would select, with the filter layer dotted; on the right are SnapKV's sets of all three key heads. Almost all keep the beginning and the end of the prompt. The needle stands close to the question here, so that nearly every layer selects most of it: an easy case.
#
# A few prompts say little. The kept run has five runs of one prompt at each of three lengths and three depths, all methods and six more filter layers (*nothing forced* is GemFilter with no token kept by force).

# %% tags=["hide-input"]
kept_runs.show("gemfilter", "needles")

# %%
kept = kept_runs.load("gemfilter", "needles")
setting = kept["parameters"]
kept_lengths, layer = setting["lengths"], setting["filter_layer"]
per_length = [[run["values"][str(n)] for n in kept_lengths] for run in kept["runs"]]
kept_share = np.array([[one["share"] for one in run] for run in per_length])
kept_scores = {  # of answers (run, length, depth); shares (run, length, layer, depth)
    name: np.array([[one["scores"][name] for one in run] for run in per_length])
    for name in per_length[0][0]["scores"]
}
print("score (best 0.917)   " + "".join(f"{n:>8}" for n in kept_lengths))
for name, values in kept_scores.items():
    label = f"GemFilter, layer {name}" if name.isdigit() else name
    print(f"{label:<21}" + "".join(f"{x:8.2f}" for x in values.mean((0, 2))))

# %%
by_layer_kept = kept_share.mean((1, 3))  # (run, layer)
best_layer, third = by_layer_kept.argmax(1), by_layer_kept.shape[1] // 3
print(f"layers that select most of the needle, by run: {best_layer}")
touched = (kept_share > 0).mean((0, 1, 3))  # (layer,)
half = touched[1 : len(touched) // 2 + 1]
print(f"a token of it: layers 1 to {len(half)} in {half.min():.0%} to ", end="")
print(f"{half.max():.0%} of prompts, layer {layer} in {touched[layer]:.0%}")
by_depth = kept_share.mean((0, 1))  # (layer, depth)
print("selected of needles at the beginning, in the middle, at the end:")
print(f"layer {layer}:", by_depth[layer].round(2), end="; ")
print("first half of the layers:", by_depth[: len(by_depth) // 2].mean(0).round(2))
longest = kept_share[:, -1].mean(0)[:, 1]  # (layer,)
print(
    f"in the middle of {kept_lengths[-1]} tokens: layer {layer} {longest[layer]:.2f}, ",
    end="",
)
print(f"most {longest.max():.2f} (layer {longest.argmax()})")

# %% tags=["hide-input"]
fig, axes = plt.subplots(1, 2, figsize=(7.5, 3.3))
for name, key in named.items():
    pairs = [over_runs([one[key] for one in small[n]]) for n in test_lengths]
    mean, half = np.array(pairs).T
    style = {"color": COLORS[name], "fmt": MARKS[name] + "-", "capsize": 3, "ms": 5}
    axes[0].errorbar(test_lengths, mean, half, **style, label=name)
axes[0].legend(loc="lower left")
axes[0].set(xscale="log", xlabel="tokens in the prompt", ylabel="values right")
axes[0].set(title="a small trained model", ylim=(0.1, 1.03))
plain_ticks(axes[0])
shares_by_length = kept_share.mean((0, 3))  # (length, layer)
tones = figures.shades(len(kept_lengths))
for n, values, mark, tone in zip(kept_lengths, shares_by_length, "os^", tones):
    axes[1].plot(values, mark + "-", color=tone, ms=3.5, lw=1.2, label=f"{n} tokens")
    axes[1].axhline((setting["k"] - 31) / (n - 31), color=tone, lw=0.8, ls=":")
axes[1].legend(loc="upper left", ncols=1)
axes[1].set(xlabel="filter layer", ylabel="needle selected", ylim=(0, 1.0))
axes[1].set(title="SmolLM2, 30 layers")
figures.show(
    fig,
    title="Re-reading wins beyond the trained length; a real model finds late",
    alt="Left: share of right values over prompt length for five methods; at the "
    "longest length all have fallen, GemFilter least. Right: share of the "
    "needle among selected tokens by layer for three prompt lengths, highest at "
    "layer 22, lower in the first half; dotted lines are chance.",
    opening=True,
)

# %% tags=["hide-input"]
fig, axes = plt.subplots(1, 2, figsize=(7.5, 3.2), width_ratios=(1.2, 1))
for i, name in enumerate(METHODS):
    values = kept_scores[str(layer) if name == "GemFilter" else name].mean(2)
    pairs = [stats.mean_interval(one) for one in values.T]  # (run,) by length
    mean, half = np.array(pairs).T
    style = {"color": COLORS[name], "fmt": MARKS[name] + "-", "capsize": 3}
    beside = np.array(kept_lengths) + 14 * (i - 2)  # so that intervals are seen
    axes[0].errorbar(beside, mean, half, **style, label=name)
axes[0].axhline(needle.BEST_SCORE, **figures.LINES["chance"])
axes[0].set(xlabel="tokens in the prompt", ylabel="score", ylim=(-0.26, 1))
axes[0].set_yticks(np.linspace(0, 1, 6))
axes[0].legend(loc="lower left", ncols=3, fontsize=9, columnspacing=1)
layers = sorted(int(name) for name in kept_scores if name.isdigit())
mean, half = np.array([over_runs(kept_scores[str(x)]) for x in layers]).T
axes[1].errorbar(layers, mean, half, color=COLORS["GemFilter"], fmt="D-", capsize=3)
axes[1].set(xlabel="filter layer", ylim=(0, 1), title="GemFilter by filter layer")
axes[0].set(title="methods, 160 tokens kept")
figures.show(
    fig,
    title="At a thousand tokens a small model reads all, and loses by selecting",
    alt="Left: needle scores over prompt length; All KV highest, at the dotted line of the "
    "best score, the others lower. "
    "Right: scores of GemFilter by filter layer, highest at layer 22.",
)


# %% tags=["remove-cell"]
ahead = kept_share[:, :, layer] - kept_share[:, :, :third].mean(
    2
)  # (run, length, depth)
ledger.mean("real-model-has-a-filter-layer", ahead.mean((1, 2)))
ledger.mean("real-model-finds-in-the-middle", ahead[:, :, 1].mean(1))
ledger.mean("filter-layer-is-early", (best_layer + 1) / by_layer_kept.shape[1])
answered = {name: values.mean((1, 2)) for name, values in kept_scores.items()}  # (run,)
ours = answered[str(layer)]
early = (answered["4"] + answered["10"]) / 2
ledger.mean("filter-layer-decides-the-answer", ours - early)
ledger.mean("last-layer-filters-worse", ours - answered["29"])

# %% tags=["remove-cell"]
ledger.mean("real-model-beats-the-whole-cache", ours - answered["All KV"])
ledger.mean("real-model-beats-snapkv", ours - answered["SnapKV"])
ledger.mean("real-model-keeps-the-question-itself", ours - answered["nothing forced"])
ledger.mean("real-model-one-run-is-comparable", ours - answered["One-Run"])
ledger.mean("real-middle-row-fails", ours - answered["middle row"])
ledger.mean("real-largest-row-fails", ours - answered["largest row"])

# %% [markdown]
# **Reading the figures.** Intervals are 95 %; in the left panel of the second figure, points are moved sideways so that they can be told apart, and the dotted line is the highest possible score, 11/12. Layer 22 selects two thirds of the needle, and its neighbours more than half; no layer before them does, and what the first half selects is mostly needles that stand close to the question. The paper's own measure, the distance of the nearest selected token, cannot tell layers apart here: a seventh to a half of the prompt is selected and the needle has over twenty tokens, so that most layers touch it in most prompts, by chance alone; hence the share. So there *is* a filter layer, and answers follow it: with layer 22 the score is two and a half times the mean of those with layers 4 and 10. But it lies at three quarters of the depth, and not before the middle. A selection there saves a quarter of the work on a long prompt instead of more than half.
#
# These are means over depths, and the depths differ. Of needles at the beginning layer 22 selects 0.75 and of those at the end 0.96, of those in the middle 0.22, no more than at random (0.26), and at 1,120 tokens nothing. No other layer does much better: at 1,120 tokens none selects a tenth of them. So *found* means found at the two ends, where the first half of the layers find one of them only, the end beside the question (0.08 against 0.73). At a depth of 50 %, where the paper looks, layer 22 is ahead of the first ten layers by $0.11\pm0.09$, which decides nothing.
#
# Up to 1,120 tokens All KV answers every question, and every method that drops tokens answers fewer. That is the regime in which nothing is to be gained: what can be read need not be found. SnapKV and H2O keep as many tokens; SnapKV loses least, chooses for each layer apart, and begins its answer with the whole prompt in view. H2O, which sums the attention of all tokens and not that of the question, loses most at the two longer lengths. One-Run and GemFilter are alike, as in the paper. The middle row fails, as in the paper. The largest row does not: here it is that of one of the question's own tokens, and its answers are as good on average. And the question selects itself: forcing it changes the mean score by less than 0.01.
#
# ### What the paper printed
#
# LongBench ([Bai et al., 2024](../book/references.bib#bai2024longbench)) has fourteen English tasks; the paper's three models are too large to be run here. These are its averages, recomputed from the scores of the tasks.

# %%
# NBVAL_CHECK_OUTPUT
models_named = list(printed.LONGBENCH)
methods = [f"{m}-{k}" for k in (1024, 2048, 4096) for m in ("SnapKV", "GemFilter")]
methods = ["All KV", "H2O-4096", "MInference", "LLMLingua-1024", *methods]
print(f"{'Table 9.1':<15}" + "".join(f"{name:>18}" for name in models_named))
off = []
for method in methods:
    row = []
    for name in models_named:
        scores = printed.LONGBENCH[name].get(method)
        row.append(f"{fmean(scores[:-1]):18.2f}" if scores else f"{'-':>18}")
        off += [abs(fmean(scores[:-1]) - scores[-1])] if scores else []
    print(f"{method:<15}" + "".join(row))
for title, table in (("9.2, layer", printed.BY_LAYER), ("G.1", printed.CHAT_TEMPLATE)):
    off += [abs(fmean(v[:-1]) - v[-1]) for v in table.values()]
    print(f"Table {title}: " + ", ".join(f"{k} {v[-1]:.2f}" for k, v in table.items()))
for name, value in printed.NEEDLE.items():
    print(f"needle: {value:.3f}  {name}")
print(f"averages differ from the printed ones by at most {max(off):.3f}")

# %% [markdown]
# GemFilter against SnapKV, task by task: with 1,024 tokens its average is lower by 0.8 and 0.9 points for LLaMA and Phi and higher by 0.4 for Mistral, and on single tasks the two differ by up to 8 to 12 points. With Phi and 2,048 tokens it loses 2.5 points, and with LLaMA's chat template (Table G.1) 3.1. *Comparable* is a fair word for one model of three in all tables, Mistral Nemo. Nor is the drop *negligible, even with only 1,024 tokens* (8 % of the prompts on average; 4,096 are 32 %): against All KV it is 2.2, 1.2 and 1.9 points. The jump in Table 9.2 is where the text says, from 28.0 at layer 12 to 34.5 at layer 13; and half of its height is a single task of fourteen, passage retrieval (43 to 92), which is a haystack, too.

# %% tags=["remove-cell"]
ledger.exact("printed-averages-are-averages", max(off))
chat = printed.CHAT_TEMPLATE
against_snapkv = [
    table[f"GemFilter-{k}"][-1] - table[f"SnapKV-{k}"][-1]
    for table in printed.LONGBENCH.values()
    for k in (1024, 2048, 4096)
]
against_snapkv += [chat["GemFilter-1024"][-1] - chat["SnapKV-1024"][-1]]
ledger.exact("comparable-on-longbench", min(against_snapkv))
drops = [t["GemFilter-1024"][-1] - t["All KV"][-1] for t in printed.LONGBENCH.values()]
ledger.exact("drop-with-1024-is-negligible", min(drops))

# %% [markdown]
# <a id="15-held-up"></a>
# ## What held up
#
# Rules were set on small models with seeds from 1000 on and on pilots of the language model with other prose. (The cells that measure the claims are left out of the page; they are in the notebook.) The last row is measured with the page; where the language model or the sentences are not installed, it says so.

# %%
# NBVAL_CHECK_OUTPUT
ledger.show()

# %% [markdown]
# **Holds.** The mechanism, wherever it can be isolated. A layer by hand, and one that was built to match and then trained, point at the tokens that the question needs before any answer is formed; finding them needs a smaller margin than reading them among thousands, which is a theorem and is what the small model shows; reading what was found again, side by side, wins beyond the trained length, over the whole cache and over both methods that evict from it. One-Run, which has the same tokens at their old places, does not. The work on the prompt falls by nearly $m/r$, with all constants: 2.4 times for LLaMA.
#
# **Does not hold as printed.** The score has the ceiling $11/12$. The theorem's memory does not give the 30 % that are reported, and its work not the 2.4 for Mistral Nemo and Phi. *Comparable on LongBench* is true for one model of three, and a drop of one to two points with 1,024 tokens is small, not negligible.
#
# **Does not hold for a small real model.** SmolLM2 finds at layer 22 of 30, not in the first half; up to 1,120 tokens it gains nothing by selection, against All KV or SnapKV; and the largest row, which fails in the paper, does not fail here. None of this speaks against the paper, whose models are thirty to ninety times as large and read a hundred times as much; but *early* is not a law.
#
# **Left out by the paper, needed by small models.** With two heads, sums of raw products select badly, and the question must be kept by force. Both are options here; the paper's choice is the default of the package, and SmolLM2 with nine heads needs neither.
#
# **Only a stand-in.** A Transformer of two layers, in which it is built in that layer 1 finds, so that it says nothing on where a filter layer arises; and one language model in four bits, with 45 prompts of one text.

# %% [markdown]
# <a id="15-not-run"></a>
# ## Not run here
#
# | What the thesis has or suggests | Why not by default | What runs it |
# |---|---|---|
# | Needles with LLaMA 3.1 8B, Mistral Nemo 12B and Phi 3.5 Mini up to 60,000 and 120,000 tokens (Figures 9.4, 9.5, G.1 to G.7) | weights of 8 to 24 GB, which need a GPU of 80 GB; the sentences here fill 40,000 tokens | `mvnb run 15 --preset paper -p language_model=FOLDER -p filter_layer=13 -p 'llm_frame=["", "\nAnswer:"]'` for a folder with a model as Hugging Face saves it, once for each; 19 in place of 13 for Mistral Nemo and Phi |
# | LongBench (Tables 9.1, 9.2, G.1) | fourteen data sets and the same models | not offered; the printed numbers stand above |
# | MInference and LLMLingua | other methods, of which the thesis reports numbers only | not offered |
# | Time and memory on a GPU (Figures 9.3 and 9.6) | no such GPU; counted, and timed on a small random network | not offered |
# | The kept run of the language model | 40 minutes of a processor core | `mvnb keep 15 needles` |
# | Prompts of twenty times the trained length | half a minute more | `mvnb run 15 -p test_lengths='[48,144,960]' -p language_model=''` |

# %% [markdown]
# <a id="15-try"></a>
# ## Try it
#
# :::{exercise}
# :label: ex-15-score
#
# By hand: which score does *The best thing to do in San Francisco is visit a museum on Sunday.* get, and what does that say about a method with a mean score of 0.125 or 0.198?
# :::
#
# :::{solution} ex-15-score
# :class: dropdown
#
# Of the expected words *eat, a, sandwich, and, sit, in, dolores, park, on, a, sunny, day.* it has *a*, *in* and *on*: $3/12=0.25$. Since a question about San Francisco invites answers with such words, 0.125 and 0.198 are what a model gets that has not seen the needle.
# :::
#
# :::{exercise}
# :label: ex-15-margin
#
# By hand: a head gives the needle $\Delta=6\sigma$ with $\sigma=1$ among $n=120{,}000$ tokens. Which share of its weight is on the needle, is the needle among the first 1,024, and what is the share when these are read again by another head with the same margin?
# :::
#
# :::{solution} ex-15-margin
# :class: dropdown
#
# $n\,e^{1/2-6}=120{,}000\cdot0.0041=490$, so the share is $1/491$. The number of tokens above $6\sigma$ is $n\bar\Phi(6)=10^{-4}$ on average: found, with room to spare ($z=2.4$ would do). With 1,024 tokens $1{,}024\cdot0.0041=4.2$, and the share is $1/5.2=0.19$, a hundred times as much.
# :::
#
# :::{exercise}
# :label: ex-15-pool
#
# By hand: the key token alone has score $\Delta$, its neighbours have noise. How large must $\Delta$ be so that the averages over five that contain it are found, and which places are then selected?
# :::
#
# :::{solution} ex-15-pool
# :class: dropdown
#
# An average that contains it has mean $\Delta/5$ and deviation close to $\sigma/\sqrt5$, those of noise alone have mean 0: it takes $\Delta/5\ge z\sigma/\sqrt5$, so $\Delta\ge\sqrt5\,z\sigma$, where a token alone needs $z\sigma$. All five windows that contain the key are then selected together: two places before it and two behind. The values are the two behind.
# :::
#
# :::{exercise}
# :label: ex-15-rerun
#
# Re-run the small model on prompts of twenty times the trained length. What becomes of All KV, of GemFilter, and of the layer that finds?
# :::
#
# :::{solution} ex-15-rerun
# :class: dropdown
#
# `mvnb run 15 -p test_lengths='[48,144,960]' -p language_model=''`. All KV loses more, and GemFilter begins to lose too: the filter itself misses needles at the beginning, since its own attention has to bridge distances that it was not trained on. Selection moves the limit; it does not abolish it.
# :::

# %% [markdown]
# <a id="15-further"></a>
# ## Further reading
#
# - The caches that are cut down after the prompt: SnapKV ([Li et al., 2024](../book/references.bib#li2024snapkv)) and H2O ([Zhang et al., 2023](../book/references.bib#zhang2023h2o)); before it, prompts compressed by a small model, LLMLingua ([Jiang et al., 2023](../book/references.bib#jiang2023llmlingua)).
# - Induction heads in trained models: Olsson et al. ([Olsson et al., 2022](../book/references.bib#olsson2022context)). Rotary positions: Su et al. ([Su et al., 2024](../book/references.bib#su2024roformer)).
# - What attention does with irrelevant context, in the same language model: {doc}`chapter 11 <11_icl_and_scale>`; how one large step teaches attention which token decides: {doc}`chapter 6 <06_decision_lists>`.
# - The [closing page](../book/closing.md) says where the thesis sees the questions that remain.
