"""Attention over selected blocks: providers behind one interface, chosen by name or by measurement."""
