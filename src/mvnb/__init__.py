"""Python package of the book: data, models, losses, training, probes, theory and the claims ledger."""

__version__ = "0.1.0"
