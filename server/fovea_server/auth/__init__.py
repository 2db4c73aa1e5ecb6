"""Who may do what: keys, the secrets of restricted APIs, and programs of this machine."""
