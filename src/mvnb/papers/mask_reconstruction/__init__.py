"""Pan, Zhou and Yan 2023: filling in masked patches teaches every view (chapter 3)."""
