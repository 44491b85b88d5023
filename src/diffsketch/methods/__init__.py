"""Private, compressed means of distributed vectors: one method in each file.

`base` is the protocol. Imports `sketch`, `privacy` and `wire`; learning and engines import it.
"""
