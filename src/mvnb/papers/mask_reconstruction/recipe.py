"""SimMIM in a training loop of one's own, which needs nothing of this package."""

import torch


def masked_loss(encoder, decoder, token, images, patch=4, ratio=0.6):
    """Return the mean absolute error on masked pixels of ``images`` ``(n, channels, height, width)``."""
    n, channels, height, width = images.shape
    cells = (torch.rand(n, 1, height // patch, width // patch) < ratio).to(images)
    masked = cells.repeat_interleave(patch, 2).repeat_interleave(patch, 3)  # 1 where pixels are hidden
    filled = decoder(encoder(images * (1 - masked) + token * masked))
    return ((filled - images).abs() * masked).sum() / (channels * masked.sum())


def pretrain(encoder, decoder, images, steps, step_size=1e-3, batch=128):
    """Train ``encoder`` and ``decoder`` to fill in masked patches; afterwards, put a classifier on ``encoder``."""
    token = torch.zeros(images.shape[1], 1, 1, requires_grad=True)  # shown in the place of masked pixels
    optimizer = torch.optim.AdamW([token, *encoder.parameters(), *decoder.parameters()], step_size)
    for _ in range(steps):
        loss = masked_loss(encoder, decoder, token, images[torch.randperm(len(images))[:batch]])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
