"""The language: what an author writes, and the intermediate representation it becomes.

Nothing here imports Triton, and torch is imported only when a reference is built.
"""
