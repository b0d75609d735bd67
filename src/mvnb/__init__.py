"""Python package of the book: data, models, losses, training of replicas, probes, theory and the claims ledger."""

__version__ = "0.1.0"
