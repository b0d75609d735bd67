"""Pan, Zhou and Yan 2023: in a multi-view model, a masked autoencoder learns every view (chapter 3)."""
