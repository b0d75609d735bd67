"""What one paper alone needs, a folder each."""
