"""Serving engines that a compiled flow runs in; importing this imports none of them."""
