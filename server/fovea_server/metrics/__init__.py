"""The metrics of a server, in the text format of Prometheus."""
