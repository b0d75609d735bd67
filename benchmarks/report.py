"""Report of the benchmarks: ``python benchmarks/report.py RESULT.json [RESULT.json ...]``.

Reads the output of ``pytest benchmarks --benchmark-json=RESULT.json``, one file per setting. Writes ``RESULTS.md`` and the
compact ``results.json`` beside this file, and the figure of the page on costs.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from draw import draw

HERE = Path(__file__).parent
PICTURE = HERE.parent / "book" / "_static" / "what-it-costs.svg"
STEPS = 500  # length of the run whose total time, including compilation, is compared
CONTENDERS = ("loop", "authors", "autograd", "compiled", "jax")
TITLES = {"1": "One core", "2": "Two cores", "cuda": "GPU"}

HOW_TO_READ = f"""\
`mvnb` is `mvnb.training.fit` with a gradient written by hand, on one thread. All contenders keep the memory that they free, as
the kernels of chapters do (`MALLOC_TRIM_THRESHOLD_`).
Every other column is the time of another contender divided by that of `mvnb`: **above 1, `mvnb` is faster**.

- *loop*: a loop over seeds with a module, `loss.backward()`, `torch.optim.SGD` and, for online tasks, PyTorch's random numbers,
  on all cores of the setting;
- *authors*: a reimplementation of the training code published by the authors of the paper: for chapter 1 a convolution that
  strides over the patches of an image, for chapter 5 NumPy's random numbers and a compiled gradient called once per step;
- *autograd*: `fit` with `training.ModuleObjective(module, loss)`, for a model without a gradient of its own, on one thread;
- *JAX*: `jit(vmap(scan))` over replicas and steps, on all cores of the setting, with the fastest of several ways to write
  the loss and the fastest of its generators; then the total time of a run of {STEPS} steps, including JAX's compilation.

*Share of bound* is the time that the matrix products of a step would take at the measured rate of a large float32 product on
one core, divided by the number of cores and the time of `mvnb`. It is low where the work is not in matrix products: Midpoint
Mixup spends its time on elementwise operations on all pairs of points, the online tasks on drawing samples. All contenders
start from the same parameters and do the same arithmetic in float32; three steps on the same data must agree before timing
begins. The contenders take turns, and the table reports medians over rounds. The machine was shared: matrix products ran up to
1.5 times as fast from one minute to the next, so expect about 25 % scatter between rows and less within a row.
"""


def _row(benchmark: dict, cores: int) -> dict:
    info = benchmark["extra_info"]
    seconds, bound = info["seconds"], info.get("bound")
    ours = seconds["mvnb"]
    ratios = {name: seconds[name] / ours for name in ("loop", "authors", "autograd", "compiled", "jax") if name in seconds}
    if "jax" in seconds:
        ratios["jax_run"] = (info["jax_compile"] + STEPS * seconds["jax"]) / (STEPS * ours)
    row = {"name": info.get("row"), "sizes": info["sizes"], "seconds": seconds, "ratios": ratios}
    row |= {k: info[k] for k in ("jax_compile", "gemm_rate") if k in info}
    if bound is not None:
        row["share_of_bound"] = bound / cores / ours
    return row


def _setting(result: dict) -> dict:
    name = result["machine_info"]["setting"]
    cores = int(name) if name.isdecimal() else 1
    setting = {"device": result["machine_info"]["device"], "rows": [], "sweep": [], "slopes": {}, "memory": {}}
    for benchmark in result["benchmarks"]:
        info = benchmark["extra_info"]
        if "row" in info:
            setting["rows"].append(_row(benchmark, cores))
        elif "sweep" in info:
            setting["sweep"] = info["sweep"]
        elif "slopes" in info:
            setting["slopes"][info["slopes"]] = info["axes"]
        elif "memory" in info:
            setting["memory"][info["memory"]] = info["megabytes"]
        elif "first_call" in info:
            setting["first_call"] = info["first_call"]
    return setting


def _short(value):
    """Round the floats of a tree to four significant digits."""
    if isinstance(value, dict):
        return {k: _short(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_short(v) for v in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def summary(results: list[dict]) -> dict:
    """Return the results of all settings as a plain dictionary."""
    info = results[0]["machine_info"]
    machine = {"cpu": info["cpu"].get("brand_raw"), "cores": info["cpu"].get("count"), "python": info["python_version"]}
    settings = {result["machine_info"]["setting"]: _setting(result) for result in results}
    return _short({"machine": machine | {"versions": info["versions"]}, "steps": STEPS, "settings": settings})


def _table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def _number(value: float | None, form: str = "{:.2f}") -> str:
    return "–" if value is None else form.format(value)


def _ratio(value: float | None) -> str:
    return _number(value, "{:.2f}" if value and value < 10 else "{:.0f}")


def _rows(setting: dict, jax: bool) -> str:
    columns = {
        "loop": "loop ÷ mvnb",
        "authors": "authors ÷ mvnb",
        "autograd": "autograd ÷ mvnb",
        "compiled": "autograd, compiled ÷ mvnb",
        "jax": "JAX ÷ mvnb",
        "jax_run": f"JAX ÷ mvnb, {STEPS} steps with compilation",
    }
    for name in ("authors", "compiled"):
        if not any(name in row["ratios"] for row in setting["rows"]):
            del columns[name]
    header = ["task", "mvnb, ms per step", *columns.values(), "share of bound"]
    lines = []
    for row in setting["rows"]:
        ratios = [_ratio(row["ratios"].get(name)) for name in columns]
        share = _number(row.get("share_of_bound"), "{:.0%}")
        lines.append([row["name"], _number(1e3 * row["seconds"]["mvnb"]), *ratios, share])
    text = _table(header, lines)
    if setting["device"]:
        text += f"\nPyTorch on {setting['device']}; JAX and the bound are left out.\n"
    elif not jax:
        text += "\nJAX is not installed; its columns are empty.\n"
    sampled = [row for row in setting["rows"] if "sampling" in row["seconds"]]
    if sampled:
        parts = [f"{row['name']} {row['seconds']['sampling'] / row['seconds']['mvnb']:.0%}" for row in sampled]
        text += f"\nShare of the time of `mvnb` spent on drawing samples: {'; '.join(parts)}.\n"
    if "first_call" in setting:
        cold, cached = setting["first_call"]["cold"], setting["first_call"]["cached"]
        text += (
            f"\nFirst calls of `PatchObjective` on a machine: {cold['plain']:.1f} s for ERM, {cold['mixed']:.1f} s for mixed "
            f"pairs, {cold['steps']:.1f} s for several steps in one call, compiled once and cached on disk. Later processes: "
            f"{cached['plain']:.2f} s, then {cached['mixed']:.2f} s and {cached['steps']:.2f} s. The table does not include "
            "these times.\n"
        )
    return text


def _tasks(setting: dict) -> str:
    rows = ((row["name"], ", ".join(f"{v} {k}" for k, v in row["sizes"].items())) for row in setting["rows"])
    return "".join(f"- *{name}*: {sizes}\n" for name, sizes in rows)


def _sweep(setting: dict) -> str:
    lines = []
    for row in setting["sweep"]:
        per_replica = (
            _number(row["seconds"].get(name) and 1e6 * row["seconds"][name], "{:.1f}") for name in ("mvnb", "jax", "loop")
        )
        lines.append([str(row["replicas"]), *per_replica])
    return _table(["replicas", "mvnb", "JAX", "loop"], lines)


def _slopes(setting: dict) -> str:
    lines = []
    for objective, axes in setting["slopes"].items():
        for axis, found in axes.items():
            sizes, times = (
                ", ".join(map(form, found[k])) for k, form in (("sizes", str), ("seconds", lambda s: f"{1e3 * s:.2f}"))
            )
            name = "samples" if axis == "n" else axis
            lines.append([f"{objective}, {name}", sizes, times, _number(found["slope"])])
    return _table(["objective, size", "sizes", "ms per step", "slope"], lines)


def markdown(found: dict) -> str:
    """Return the page ``RESULTS.md``."""
    machine = found["machine"]
    versions = ", ".join(f"{k} {v}" for k, v in machine["versions"].items() if v)
    text = "# How fast the training core is\n\n"
    text += f"{machine['cpu']}, {machine['cores']} cores; Python {machine['python']}, {versions}.\n\n{HOW_TO_READ}"
    text += f"\n## Sizes of the tasks\n\n{_tasks(next(iter(found['settings'].values())))}"
    for name, setting in found["settings"].items():
        text += f"\n## {TITLES.get(name, f'{name} cores')}\n\n{_rows(setting, machine['versions'].get('jax'))}"
        if setting["sweep"]:
            text += f'\n### Microseconds per replica and step of "ERM, small"\n\n{_sweep(setting)}'
        if setting["slopes"]:
            text += "\n### Growth of the time per step of `mvnb`\n\nSlope of log time against log size; pairs of samples make "
            text += f"it 2 for Midpoint Mixup.\n\n{_slopes(setting)}"
        if setting["memory"]:
            peaks = (f"{k} {v['peak']:.0f} MB" for k, v in setting["memory"].items())
            imports = max(v["imports"] for v in setting["memory"].values())
            text += f"\nPeak memory with 256 replicas: {', '.join(peaks)}; the imports take {imports:.0f} MB of it.\n"
    return text


def main(paths: list[str]) -> None:
    found = summary([json.loads(Path(path).read_text(encoding="utf-8")) for path in paths])
    (HERE / "results.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    (HERE / "RESULTS.md").write_text(markdown(found), encoding="utf-8")
    draw(found, PICTURE)


if __name__ == "__main__":
    main(sys.argv[1:])
