"""A filter with a learned threshold in a training loop of one's own, without this package."""

import torch


class Threshold(torch.nn.Module):
    """Sum of the soft-thresholded responses of one filter to the patches ``(n, patches, dim)`` of a point."""

    def __init__(self, dim: int):
        super().__init__()
        self.w, self.b = torch.nn.Parameter(1e-3 * torch.randn(dim)), torch.nn.Parameter(torch.zeros(()))

    def forward(self, x):
        """Return one output per point, ``(n,)``."""
        z = x @ self.w
        return (torch.relu(z + self.b) - torch.relu(self.b - z)).sum(1)


def train(model, sample, n_patches: int, *, steps: int, step_size: float) -> None:
    """Train ``model`` on fresh batches ``x, y = sample()`` with labels of -1 and 1; the bias is ``n_patches`` times slower."""
    groups = [{"params": [model.w]}, {"params": [model.b], "lr": step_size / n_patches}]
    optimizer = torch.optim.SGD(groups, lr=step_size)
    for _ in range(steps):
        x, y = sample()
        loss = torch.nn.functional.soft_margin_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
