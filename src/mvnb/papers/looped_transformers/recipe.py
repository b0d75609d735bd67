"""Looped attention with a trained step size for each loop, in a training loop of one's own."""

import torch
from torch import nn


class LoopedAttention(nn.Module):
    """One layer of attention without a softmax, or with one, that is applied ``loops`` times to a prompt of examples."""

    def __init__(self, loops: int, softmax: bool = False):
        super().__init__()
        self.softmax, self.log_steps = softmax, nn.Parameter(torch.rand(loops) - 1)

    def forward(self, x, y):
        """Return a vector theta ``(N, d)`` for each prompt: tokens ``x`` ``(N, n, d)`` with labels ``y`` ``(N, n)``."""
        q = torch.zeros_like(x[:, 0])
        for step in self.log_steps.exp():
            scores = (x @ q[..., None])[..., 0] + y
            weights = scores.softmax(-1) if self.softmax else scores / x.shape[1]
            q = q - step * (weights[:, None] @ x)[:, 0]
        return -q


def train(model, sample, steps: int = 500, step_size: float = 0.03) -> None:
    """Train ``model`` on fresh prompts; ``sample()`` returns tokens, labels and the vectors theta* behind the labels."""
    optimizer = torch.optim.Adam(model.parameters(), step_size)
    for _ in range(steps):
        x, y, theta = sample()
        loss = (model(x, y) - theta).square().sum(-1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
