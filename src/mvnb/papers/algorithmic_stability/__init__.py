"""Karp, Neyshabur and Mohri 2020: algorithmic stability of SGD (chapter 4)."""
