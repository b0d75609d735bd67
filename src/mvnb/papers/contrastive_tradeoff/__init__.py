"""Shi, Chen, Li, Raghuram, Wu, Liang and Jha 2023: universality against label efficiency (chapter 13)."""
