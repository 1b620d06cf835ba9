"""How the nodes of a job reach each other."""
import os
import socket
import typing

from .. import core


class Peer(typing.NamedTuple):
    """Where a node's data can be read (castor_serve)."""

    address: bytes
    port: int
    token: bytes


def own_address():
    """The address at which the other nodes reach this one."""
    named = core.options.node_address
    if named:
        return named
    master = os.environ.get("MASTER_ADDR") or core.options.meeting.partition(" ")[0]
    try:
        family, _, _, _, there = socket.getaddrinfo(master, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(there)  # sends nothing
            return probe.getsockname()[0]
    except OSError as error:
        raise core.Error(f"castor: no way to MASTER_ADDR={master!r} ({error}): set CASTOR_NODE_ADDRESS to this node's address, "
                         "or CASTOR_SHARD=node") from None
