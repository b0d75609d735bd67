"""Tools behind the command ``mvnb``: chapter discovery, runs, pairing of notebooks with sources, and parameter sweeps."""
