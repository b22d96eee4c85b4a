"""Hyper-Parallel Decoding as one Ray Data stream: plan units, read, tokenize, decode, commit."""
