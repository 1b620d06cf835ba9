"""Castor's explicit API, thin over libcastor.so. Under `castor run` it is importable in any Python command."""

__version__ = "0.1.0"
