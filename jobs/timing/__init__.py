"""Timing of engines against each other: `hpd benchmark`."""
