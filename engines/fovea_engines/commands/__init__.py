"""The commands build, inspect, sensitivity and diff, and everything that prints for them."""
