"""Images to windows and back, for CPUs; the reference is the tensor version."""

from __future__ import annotations

from mvnb.compiled import compiled


@compiled()
def gather(x, stride, out):
    """All windows of ``x`` ``(n, height, width, channels)`` into ``out`` ``(n, rows, columns, side, side * channels)``."""
    n, rows, columns, side, run = out.shape
    flat = x.reshape(n, x.shape[1], -1)
    step = stride * x.shape[3]
    for i in range(n):
        for r in range(rows):
            for q in range(columns):
                for a in range(side):
                    source, target = flat[i, r * stride + a, q * step : q * step + run], out[i, r, q, a]
                    for j in range(run):
                        target[j] = source[j]


@compiled()
def scatter(windows, out):
    """The transpose for stride 1: adds ``windows`` to ``out`` ``(n, height, width, channels)``."""
    n, rows, columns, side, run = windows.shape
    channels = out.shape[3]
    flat = out.reshape(n, out.shape[1], -1)
    for i in range(n):
        for r in range(rows):
            for q in range(columns):
                for a in range(side):
                    target, source = flat[i, r + a, q * channels : q * channels + run], windows[i, r, q, a]
                    for j in range(run):
                        target[j] += source[j]
