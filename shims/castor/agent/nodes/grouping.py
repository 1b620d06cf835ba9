"""The ranks of a process group that are on this node, and the store's group of them.

The core decides which ranks are on which node, and which of them exchange (interpose/nodes/grouping.h)."""
import ctypes
import os
import secrets

import torch
import torch.distributed as dist

from .. import core
from ..common import store
from .across import Across
from .control import Control

TOKEN_BYTES = 64
_groups = {}  # ranks of a process group: its store.Group
_introduced = {}  # the same: (the node of each rank, the token of each rank's job)


def on_one_node():
    """Whether the launcher says that all ranks of the job are on this node, and they have one token: then the ranks need no exchange."""
    here, world = os.environ.get("LOCAL_WORLD_SIZE"), os.environ.get("WORLD_SIZE")
    return here is not None and here == world and core.options.begun == "run"


def one_node_of(process_group, device=None):
    """Whether the ranks of a process group are on this node. The first call may be a collective of them. `device`: of this rank, for groups
    that exchange no tensors of the host, as NCCL's."""
    ranks = tuple(dist.get_process_group_ranks(process_group))
    if not on_one_node() and ranks not in _introduced:
        _introduced[ranks] = _introduce(process_group, len(ranks), device)
    return on_one_node() or len(set(_introduced[ranks][0])) == 1


def control_of(process_group, device=None):
    """Over which the ranks of a process group compare what must be alike: the store's group of them, on several nodes a Control. As one_node_of."""
    if one_node_of(process_group, device):
        return group_of(process_group)
    ranks = tuple(dist.get_process_group_ranks(process_group))
    return Control(ranks, _numbered(_introduced[ranks][0]))


def _numbered(identities):
    """Nodes are numbered by their first rank."""
    numbers = {}
    return [numbers.setdefault(identity, len(numbers)) for identity in identities]


def token_of(process_group):
    """By which the ranks of a process group that are on this node find each other, after one_node_of; None: by the job's."""
    ranks = tuple(dist.get_process_group_ranks(process_group))
    if ranks not in _introduced:
        return None
    identities, tokens = _introduced[ranks]
    return tokens[identities.index(core.node_identity())]


def group_of(process_group, parameters=()):
    """The store's group of this rank's node, for a process group of the script. The first call is a collective of its ranks; `parameters`: of the first model there."""
    ranks = tuple(dist.get_process_group_ranks(process_group))
    if ranks not in _groups:
        _groups[ranks] = _make(process_group, ranks, sum(p.nbytes for p in parameters))
    return _groups[ranks]


def _make(process_group, ranks, parameter_bytes):
    name = "ddp " + ",".join(map(str, ranks))
    rank = dist.get_rank(process_group)
    if on_one_node():
        return store.group(name, rank, len(ranks))
    one_node_of(process_group)
    identities, tokens = _introduced[ranks]
    if len(set(identities)) == 1 and len(set(tokens)) == 1:
        return store.group(name, rank, len(ranks))
    group, token = _by_nodes(name, rank, ranks, identities, tokens)
    core.rank_set(dist.get_rank())
    if group.across is not None and core.plugin_shards():
        group.across.shard(process_group, identities, token, parameter_bytes)
    return group


def _by_nodes(name, rank, ranks, identities, tokens, make=None):
    """(the store's group of this rank's node, the token of that node's ranks). `make`: Across's."""
    place, members, lane = _find(identities, rank)
    across = Across(place, [ranks[r] for r in lane], make) if place.node_count > 1 else None
    group = store.group(f"{name} on node {place.node}", place.local_rank, place.local_world, token=tokens[members[0]],
                        owners=place.lanes, across=across, total=len(ranks))
    core.store_ranks_set(group.handle, (ctypes.c_int32 * len(members))(*(ranks[member] for member in members)))
    if across is not None:
        across.group = group
    return group, tokens[members[0]]


def group_of_all(process_group, name, rank, make):
    """The same for all ranks of a job, whose process group is Castor's own, as those are that make(ranks) returns: (the group, the node of each rank, by which the
    ranks of this node find each other). Every node keeps all."""
    ranks = list(range(process_group.size()))
    identities, tokens = _introduce(process_group, len(ranks), "cpu")
    group, token = _by_nodes(name, rank, ranks, identities, tokens, make)
    if group.across is not None:
        group.across.ahead = False
    core.rank_set(rank)
    return group, _numbered(identities), token


def _introduce(process_group, world, device):
    """(the node of each rank, the token of each rank's job)"""
    # A process that begins many jobs, as Ray's do, has one token: the ranks draw one for each set of them.
    token = secrets.token_hex(16) if core.options.begun == "process" else core.options.job
    token = token.encode()[:TOKEN_BYTES - 1].ljust(TOKEN_BYTES, b"\0")
    mine = torch.frombuffer(bytearray(core.node_identity().to_bytes(8, "little") + token), dtype=torch.uint8).to(device or "cpu")
    every = [torch.empty_like(mine) for _ in range(world)]
    dist.all_gather(every, mine, group=process_group)
    told = [bytes(t.tolist()) for t in every]
    return [int.from_bytes(t[:8], "little") for t in told], [t[8:].rstrip(b"\0") for t in told]


def _find(identities, rank):
    world = len(identities)
    place = core.Nodes()
    members, lane = (ctypes.c_int32 * world)(), (ctypes.c_int32 * world)()
    core.nodes_find((ctypes.c_uint64 * world)(*identities), world, rank, ctypes.byref(place), members, lane)
    in_lane = place.local_rank < place.lanes
    return place, list(members[:place.local_world]), list(lane[:place.node_count]) if in_lane else []
