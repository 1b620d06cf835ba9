"""What a host has sent to the others."""


def sent():
    """Bytes that left this network namespace by eth0; 0 where there is none."""
    with open("/proc/net/dev") as file:
        lines = dict(line.split(":") for line in file if ":" in line)
    return sum(int(figures.split()[8]) for name, figures in lines.items() if name.strip() == "eth0")
