"""Mechanisms: each one clips, adds noise and states what that proves, all from one object.

`mechanism.release(vectors, noise, encode=...)` is what may be sent; `mechanism.claim` is what that
guarantees.
"""
