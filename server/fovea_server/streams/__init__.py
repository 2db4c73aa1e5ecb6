"""Streams: cameras and videos, their events, and frames over WebSockets."""
