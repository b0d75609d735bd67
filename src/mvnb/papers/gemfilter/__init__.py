"""Shi, Ming, Nguyen, Liang and Joty 2024: early layers find the tokens that matter (chapter 15)."""
