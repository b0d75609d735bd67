"""Hong, Cui, Fuxman, Chan and Luo 2024: fine-grained labels can teach the rarer feature (chapter 2)."""
