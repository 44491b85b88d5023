"""`python -m diffsketch.cli`."""

from diffsketch.cli import main

main()
