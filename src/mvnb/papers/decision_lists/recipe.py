"""The paper's model and objective in a training loop of one's own, which needs nothing of this package."""

import torch
from torch.nn import functional as F


def train_attention(steps: int = 40, batch: int = 256, step_size: float = 10.0, c: float = 200.0) -> torch.Tensor:
    """Scores ``(key, query)`` of one attention layer, trained with the values ``c P`` on the lists of Karp's Figure 4.1."""
    n_tokens, length, offsets = 200, 25, torch.tensor([10, 20, 30, 0])
    values = c * torch.eye(n_tokens).roll(20, 0)  # token b writes the label b + 20
    scores = torch.zeros(n_tokens, n_tokens, requires_grad=True)
    for _ in range(steps):
        tokens = torch.rand(batch, n_tokens).topk(length).indices  # (sequence, position)
        lists = (tokens[..., None] + offsets) % n_tokens  # (sequence, position, entry)
        present = F.one_hot(tokens, n_tokens).sum(1)[:, None].expand(-1, length, -1).gather(2, lists)
        labels = (lists.gather(2, present.argmax(2, keepdim=True))[..., 0] + 20) % n_tokens
        attention = scores[tokens[:, :, None], tokens[:, None, :]].softmax(1)  # (sequence, key, query)
        logits = attention.mT @ values.T[tokens]  # (sequence, query, class)
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        scores = (scores - step_size * torch.autograd.grad(loss, scores)[0]).detach().requires_grad_()
    return scores.detach()
