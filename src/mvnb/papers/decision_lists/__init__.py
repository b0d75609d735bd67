"""Karp, Awasthi and Kale 2023: softmax attention learns decision lists (chapter 6)."""
