"""Shi, Wei, Xu and Liang 2024: larger models keep more noise in context (chapter 11)."""
