"""Chapter discovery, runs, pairing of notebooks and sources, and sweeps over parameters."""
