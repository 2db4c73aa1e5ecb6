"""Runs a candidate on live images beside the version that answers, and compares both."""
