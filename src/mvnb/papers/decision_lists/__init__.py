"""Karp, Awasthi and Kale 2023: given the right values, softmax attention learns decision lists (chapter 6)."""
