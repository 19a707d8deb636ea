"""Vortex: a sparse-attention method as a Python class of a few lines, run for real."""

__version__ = "0.1.0"
