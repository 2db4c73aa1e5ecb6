"""The metrics in Prometheus' format."""
