"""Messages as bytes: a header of 48 bytes, and the cells packed to their bits.

Imports nothing of ours but `errors`; methods and everything above may import it.
"""
