"""Found first under CASTOR_COMPAT=1; castor/compat.py decides what the name means."""
from castor import compat

compat.resolve(__name__)
