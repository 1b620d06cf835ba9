"""In each process of originals.py: colossalai.testing is the originals' own package, whose folder ORIGINALS_TESTING names."""
import importlib.util
import os
import sys

_FOLDER = os.environ.get("ORIGINALS_TESTING")


class _Testing:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name != "colossalai.testing" and not name.startswith("colossalai.testing."):
            return None
        place = os.path.join(_FOLDER, *name.split(".")[2:])
        if os.path.isdir(place):
            return importlib.util.spec_from_file_location(name, os.path.join(place, "__init__.py"), submodule_search_locations=[place])
        return importlib.util.spec_from_file_location(name, place + ".py")


if _FOLDER and os.environ.get("CASTOR_COMPAT") == "1":
    import colossalai  # noqa: F401 - puts Castor's finder first; the one for the tests goes before it

    sys.meta_path.insert(0, _Testing)
