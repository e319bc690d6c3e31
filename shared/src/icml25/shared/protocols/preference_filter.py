"""A problem of the track ``preference``."""
