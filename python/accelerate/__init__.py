__version__ = "1.15.0+cpp.0.1.0"
