"""APIs of other software that the server imitates."""
