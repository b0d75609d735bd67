"""One room a paper: what it needs and no other paper does. ``python -m mvnb.papers`` compiles every kernel ahead of time."""
