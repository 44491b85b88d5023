"""Engines: ways of summing the messages of a round.

Imports `learning` and everything below it.
"""
