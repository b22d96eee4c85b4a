"""A larger model behind an endpoint: how it is asked, what its labels and judgements are worth."""
