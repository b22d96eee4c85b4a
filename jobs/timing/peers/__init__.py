"""Engines of other projects, each in an environment of its own, spoken to over a pipe: `hpd benchmark --peers`."""
