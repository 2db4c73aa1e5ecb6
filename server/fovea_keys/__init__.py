"""Keys of clients: a file of them, or tokens of a provider; rates, and quotas."""
