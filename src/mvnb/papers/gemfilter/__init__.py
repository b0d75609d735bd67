"""Shi, Ming, Nguyen, Liang and Joty 2024: choosing tokens by the attention of one layer (chapter 15)."""
