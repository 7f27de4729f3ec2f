"""Checks of one result, one file each; protocol.py says what a check is."""
