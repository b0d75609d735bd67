"""Karp, Winston, Li and Singh 2021: one learned threshold finds the signal (chapter 5)."""
