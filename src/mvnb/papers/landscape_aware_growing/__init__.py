"""Karp, Saunshi, Miryoosefi, Reddi and Kumar 2024: landscape-aware growing (chapter 7)."""
