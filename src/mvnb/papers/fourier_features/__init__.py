"""Li, Liang, Shi, Song and Zhou 2024: Fourier features of modular addition (chapter 10)."""
