"""What people start: `hpd` and `python -m jobs.<name>`. Reads configuration, calls pipeline or decoder, reports."""
