"""`python -m diffsketch`."""

from diffsketch.app.cli import main

main()
