"""Shi, Wei and Liang 2022: feature emergence from inputs (chapter 8)."""
