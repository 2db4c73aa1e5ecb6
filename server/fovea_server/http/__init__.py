"""The v2 protocol over HTTP."""
