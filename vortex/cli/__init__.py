"""The command line: one command a file, `main.py` lists them."""
