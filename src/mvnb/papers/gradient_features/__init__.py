"""Shi, Wei and Liang 2023: one gradient step proposes the features (chapter 9)."""
