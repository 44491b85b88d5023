"""`python -m diffsketch`."""

from diffsketch.cli import main

main()
