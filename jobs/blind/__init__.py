"""Two runs compared by people who do not know which is which."""
