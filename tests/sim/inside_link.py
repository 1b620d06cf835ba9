"""Copies over a link of 1 GiB per second each way; started by run.py."""
import time

import torch

import inside

MIB = 1 << 20
SIZE = 100 * MIB
SECONDS = SIZE / (1 << 30)


def bytes_of(device, direction):
    return inside.engine.sim_link_bytes(device, direction)


def seconds_of(*copies):
    """That copies take, each on a stream of its own."""
    torch.cuda.synchronize(0)
    torch.cuda.synchronize(1)
    began = time.monotonic()
    streams = []
    for target, source in copies:
        streams.append(torch.cuda.Stream(target.device if target.is_cuda else source.device))
        with torch.cuda.stream(streams[-1]):
            target.copy_(source, non_blocking=True)
    for stream in streams:
        stream.synchronize()
    return time.monotonic() - began


def made(device="cpu"):
    return torch.zeros(SIZE, dtype=torch.uint8, device=device, pin_memory=device == "cpu")


def test_a_copy_takes_its_time_and_is_counted():
    host, there = made(), made("cuda:0")
    for target, source, direction in ((there, host, 0), (host, there, 1)):
        before = bytes_of(0, direction), bytes_of(0, 1 - direction), bytes_of(1, direction)
        assert seconds_of((target, source)) >= SECONDS
        assert (bytes_of(0, direction), bytes_of(0, 1 - direction), bytes_of(1, direction)) == (before[0] + SIZE, *before[1:])


def test_copies_of_one_direction_follow_each_other():
    hosts, there = (made(), made()), (made("cuda:0"), made("cuda:0"))
    assert seconds_of(*zip(there, hosts)) >= 2 * SECONDS


def test_directions_and_devices_do_not_wait_for_each_other():
    host, back, there, other = made(), made(), made("cuda:0"), made("cuda:0")
    far, near = made("cuda:1"), made()
    best = min(seconds_of((there, host), (back, other), (far, near)) for _ in range(5))
    assert best < 2.5 * SECONDS, best  # one after the other they take three times as long


def test_copies_within_a_device_do_not_use_it():
    there, other = made("cuda:0"), made("cuda:0")
    before = bytes_of(0, 0), bytes_of(0, 1)
    other.copy_(there)
    torch.cuda.synchronize(0)
    assert (bytes_of(0, 0), bytes_of(0, 1)) == before


def test_the_default_stream_counts_its_waits():
    host, there, stream = made(), made("cuda:0"), torch.cuda.Stream(0)
    torch.cuda.synchronize(0)
    before = inside.engine.sim_waited_ns(0)
    with torch.cuda.stream(stream):
        there.copy_(host, non_blocking=True)
    event = stream.record_event()
    torch.cuda.default_stream(0).wait_event(event)
    torch.cuda.synchronize(0)
    waited = inside.engine.sim_waited_ns(0) - before
    assert SECONDS / 2 <= waited / 1e9 < 5, waited
    torch.cuda.default_stream(0).wait_event(event)  # it is done
    assert inside.engine.sim_waited_ns(0) - before == waited


if __name__ == "__main__":
    inside.engine.sim_waited_ns.restype = inside.ctypes.c_ulonglong
    inside.engine.sim_link_bytes.restype = inside.ctypes.c_ulonglong
    inside.main(globals())
