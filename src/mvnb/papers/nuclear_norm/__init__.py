"""Shi, Ming, Fan, Sala and Liang 2024: domain generalization by the nuclear norm (chapter 12)."""
