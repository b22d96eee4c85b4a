"""A job on somebody else's Ray cluster: what is sent there, under which id, how it is followed and how it ended."""
