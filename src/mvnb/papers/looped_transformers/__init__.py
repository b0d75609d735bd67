"""Chen, Li, Liang, Shi and Song 2024: a loop of attention is gradient descent (chapter 14)."""
