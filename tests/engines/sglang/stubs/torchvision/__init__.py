import absent

__version__ = "0.0.0"
absent.package(__name__)
