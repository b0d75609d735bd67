"""Helper package of the book: data, models, losses, the replicated training core, probes, theory and the claims ledger."""

__version__ = "0.1.0"
