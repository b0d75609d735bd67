"""Finding chapters, running them, keeping notebooks and sources paired, and sweeps over parameters."""
