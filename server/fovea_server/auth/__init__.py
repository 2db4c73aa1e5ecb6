"""Authentication and authorization: API keys, tokens, restricted APIs and local clients."""
