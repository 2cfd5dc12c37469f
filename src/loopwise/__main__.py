"""``python -m loopwise``: the command line, for launchers that start modules, such as torchrun."""

from .cli import main

main()
