"""`python -m vortex` is the command `vortex`."""

from vortex.cli.main import main

main()
