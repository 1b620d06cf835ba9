"""CASTOR_PRECISION: parameters of 16 bits with float masters."""
