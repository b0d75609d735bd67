"""Chidambaram, Wang, Wu and Ge 2024: Midpoint Mixup learns both features in multi-view data (chapter 1)."""
