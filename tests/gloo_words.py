"""What gloo prints of its own, taken out of what scripts print."""

import re

WORDS = r"\[Gloo\] Rank | is connected to | peer ranks\. |Expected number of connected peer ranks is : "
LINES = re.compile(rf"^(?:\d*\n)*(?=.*(?:{WORDS}))(?:(?:{WORDS}|\d+)*\n)+", re.MULTILINE)


def without_gloo(printed):
    """Some versions of gloo print that they are connected, each rank in pieces that mix with those of the others: lines of
    its words and of numbers, and those of numbers alone around them."""
    return LINES.sub("", printed)
