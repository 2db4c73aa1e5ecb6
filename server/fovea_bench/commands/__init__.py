"""The commands `bench` and `tune`."""
