"""Cameras and videos: frames in, track ids, streams."""
