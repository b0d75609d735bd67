"""Chidambaram, Wang, Wu and Ge 2024: Midpoint Mixup learns every view (chapter 1)."""
