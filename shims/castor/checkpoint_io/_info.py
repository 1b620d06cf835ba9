"""What Castor writes about a checkpoint: in the index's metadata, a safetensors file's, or beside a state dict's versions."""
import json

from ._files import CheckpointError

NAME = "castor"
IN_VERSIONS = "castor checkpoint"  # a key of a state dict's _metadata: no module has a name with a space in it


class Info:
    """prefix: before each name; versions: {module: version} of those that are not 1, None where the file has PyTorch's own;
    checksums: {file: 16 digits}; part: [rank, ranks], with layouts: {name: layout} (gather_dtensor=False); rest: the file of what an
    optimizer's state dict has besides states and groups; sum: the checksum of a safetensors file without an index, 16 digits."""

    KEYS = {"prefix": str, "versions": dict, "checksums": dict, "part": list, "layouts": dict, "rest": str, "sum": str}

    def __init__(self, prefix="", versions=None, checksums=None, part=None, layouts=None, rest="", sum=""):  # noqa: A002 - as it stands in the file
        self.prefix, self.versions, self.checksums = prefix, versions, checksums or {}
        self.part, self.layouts, self.rest = part, layouts or {}, rest
        self.sum = sum

    def to_dict(self):
        return {key: getattr(self, key) for key in self.KEYS if getattr(self, key)}

    def to_text(self):
        return json.dumps(self.to_dict())

    @classmethod
    def of(cls, path, value):
        """From what a file has: a dict, its text, or None."""
        try:
            value = json.loads(value) if isinstance(value, str) else {} if value is None else value
            known = {key: value[key] for key in cls.KEYS if key in value}
            if any(not isinstance(v, cls.KEYS[key]) for key, v in known.items()):
                raise TypeError("a value of a wrong type")
            texts = {**known.get("checksums", {}), **known.get("layouts", {})}
            if any(not isinstance(t, str) for pair in texts.items() for t in pair):
                raise TypeError("a value that is no text")
            if any(type(v) is not int for v in known.get("versions", {}).values()):
                raise TypeError("a version that is no number")
            if "part" in known and (len(known["part"]) != 2 or any(type(v) is not int for v in known["part"])):
                raise TypeError("a part that is no pair of numbers")
        except (ValueError, TypeError, RecursionError) as error:
            raise CheckpointError(f"castor: {path} is damaged: its entry for Castor cannot be read ({error})") from None
        return cls(**known)
