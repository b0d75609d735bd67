"""Rows of the comparison: training tasks with their sizes."""

from functools import partial

from tasks.base import Task
from tasks.dictionary import dictionary
from tasks.linear_attention import linear_attention
from tasks.patches import gaussian, multi_view
from tasks.signal_in_noise import signal_in_noise

ROWS = {
    "ERM, small": partial(multi_view, 32),
    "ERM, medium": partial(gaussian, 32, n_classes=10, n_filters=8, n=64, patches=10, dim=20),
    "ERM, large and dense": partial(gaussian, 4, n_classes=10, n_filters=16, n=256, patches=16, dim=256, init_scale=0.1),
    "Midpoint, small": partial(multi_view, 8, lam=0.5),
    # No autograd: it would keep several arrays with all pairs of all replicas.
    "Midpoint, large": partial(gaussian, 4, n_classes=16, n_filters=16, n=128, patches=4, dim=32, lam=0.5, has_autograd=False),
    "Signal in noise, online": partial(signal_in_noise, 8),
    "Linear attention, online": partial(linear_attention, 16),
    "Two layers, dictionary, online": partial(dictionary, 16),
}

__all__ = ["ROWS", "Task", "dictionary", "gaussian", "linear_attention", "multi_view", "signal_in_noise"]
