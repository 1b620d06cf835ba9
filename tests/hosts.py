"""Several hosts on one machine: network namespaces that a bridge joins, gone with the processes in them.

    tests/hosts.py COUNT COMMAND [ARG]...

Runs COMMAND once on each host, at the same time. In its words {host} is the host's number, from 0, {hosts} the number of
hosts, and {address} the first host's address. Needs iproute2 and either root or user namespaces. The status is 0 when all
are; else the first failed one's, and the others are given a minute to end by themselves.
"""

import os
import signal
import subprocess
import sys
import time

NETWORK = "10.231.77"
READY_S, END_S = 30, 60
UNSHARE = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--net", "--user", "--map-root-user"]


def address(host):
    return f"{NETWORK}.{host + 1}"


def filled_in(word, host, count):
    return word.replace("{host}", str(host)).replace("{hosts}", str(count)).replace("{address}", address(0))


def available():
    """Why there can be no hosts here; empty: there can."""
    try:
        tried = subprocess.run([*UNSHARE, "sh", "-c", "ip link add bridge0 type bridge && ip link add veth0 type veth peer name veth1"],
                               capture_output=True, text=True, timeout=READY_S)
    except OSError as error:
        return str(error)
    return tried.stderr.strip() if tried.returncode else ""


def ip(*words):
    subprocess.run(["ip", *words], check=True, timeout=READY_S)


def attach(host, pid):
    """A cable from the bridge to the host that the process `pid` is in; its end there is called eth0."""
    ip("link", "add", f"port{host}", "type", "veth", "peer", "name", "eth0", "netns", str(pid))
    ip("link", "set", f"port{host}", "master", "switch", "up")


def be_host(host, command):
    """Waits for the cable, then becomes the command."""
    deadline = time.monotonic() + READY_S
    while subprocess.run(["ip", "link", "show", "eth0"], capture_output=True, check=False).returncode:
        if time.monotonic() > deadline:
            sys.exit("hosts.py: no cable came")
        time.sleep(0.02)
    ip("link", "set", "lo", "up")
    ip("address", "add", f"{address(host)}/24", "dev", "eth0")
    ip("link", "set", "eth0", "up")
    os.environ["GLOO_SOCKET_IFNAME"] = "eth0"  # the machine's name is not this host's
    os.execvp(command[0], command)


def be_switch(count, command):
    ip("link", "add", "switch", "type", "bridge", "forward_delay", "0")
    ip("link", "set", "switch", "up")
    hosts = []
    for host in range(count):
        words = [filled_in(word, host, count) for word in command]
        hosts.append(subprocess.Popen(["unshare", "--net", sys.executable, __file__, "--host", str(host), *words]))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        for number, process in enumerate(hosts):
            attach_when_apart(number, process)
        sys.exit(wait_for_all(hosts))
    finally:
        for process in hosts:
            if process.poll() is None:
                process.terminate()
        for process in hosts:
            process.wait()


def attach_when_apart(host, process):
    """Once the process is in a namespace of its own: before, eth0 would come to the switch's."""
    own = os.readlink("/proc/self/ns/net")
    deadline = time.monotonic() + READY_S
    while os.readlink(f"/proc/{process.pid}/ns/net") == own:
        if time.monotonic() > deadline or process.poll() is not None:
            sys.exit("hosts.py: a host did not start")
        time.sleep(0.01)
    attach(host, process.pid)


def wait_for_all(hosts):
    failed, until = 0, None
    while any(process.poll() is None for process in hosts):
        for process in hosts:
            if process.poll() and not failed:
                failed, until = process.returncode, time.monotonic() + END_S
        if until is not None and time.monotonic() > until:
            break
        time.sleep(0.05)
    failed = failed or next((process.returncode for process in hosts if process.poll()), 0)
    return failed if failed >= 0 else 128 - failed


def main():
    if sys.argv[1] == "--host":
        be_host(int(sys.argv[2]), sys.argv[3:])
    elif sys.argv[1] == "--switch":
        be_switch(int(sys.argv[2]), sys.argv[3:])
    else:
        os.execvp(UNSHARE[0], [*UNSHARE, sys.executable, __file__, "--switch", *sys.argv[1:]])


if __name__ == "__main__":
    main()
