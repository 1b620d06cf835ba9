"""What a run says on standard error: Castor's own lines, and the errors of the ranks."""

import re

LINE_LETTERS = 320  # two lines of a wide terminal


def last_words(finished):
    """What matters of standard error: Castor's lines, and each rank's error with the two places nearest to it."""
    lines = finished.errors.splitlines()
    castor = [line for line in lines if line.startswith("castor:") and not line.startswith("castor: report:")]
    found = list(dict.fromkeys(castor))[-4:]
    by_rank = {}
    for line in lines:
        rank, text = re.match(r"(\[rank\d+\]: )?(.*)", line).groups()
        by_rank.setdefault(rank, []).append(text)
    for rank, texts in by_rank.items():
        starts = [number for number, text in enumerate(texts) if text.startswith("Traceback (most recent call last)")]
        for start in starts[:2]:
            trace = texts[start + 1 :]
            if any("torch/distributed/launcher" in text for text in trace[:40]):
                continue  # torchrun's own, about a rank that failed
            end = next((n for n, text in enumerate(trace) if not text.startswith("  ")), len(trace) - 1)
            places = [text.strip() for text in trace[:end] if text.startswith("  File ")]
            found.append(f"{rank or ''}{trace[end][:300]}")
            found += [f"    {place}" for place in places[-2:]]
    noise = re.compile(r"torch/distributed/|^\s*$|^castor:|^[-=]+$")
    return "\n".join(found or [line for line in lines if not noise.search(line)][-8:])


def of_castor(finished):
    """Castor's own lines, and its errors in tracebacks."""
    return [line for line in finished.errors.splitlines() if re.search(r"(^|: )castor: ", line)]


def what_it_says(expect, finished):
    """What is wrong with Castor's lines; empty: nothing."""
    lines = of_castor(finished)
    if expect.says and not any(re.search(expect.says, line) for line in lines):
        return f"expected a line like {expect.says!r} on standard error"
    return next((f"says {line!r}" for line in lines if expect.says_not and re.search(expect.says_not, line)), "")


def what_is_wrong_with(expects, finished, may_say=(), hosts=1):
    """What no run may say, whatever its rows: a line twice on a host, or more than two lines hold; and, where it goes on, a line that none of
    `expects` asks for, nor is like one of `may_say`. Empty: nothing."""
    if any("CASTOR_LOG_LEVEL=debug" in expect.options for expect in expects):
        return ""
    lines = [re.sub(r"^(\[rank\d+\]: )?castor: (rank \d+: )?", "", line) for line in of_castor(finished)]
    asked = [pattern for expect in expects for pattern in (expect.says, expect.aside and "without the plugin") if pattern]
    own = r"^report: |held the trace of an earlier run|on devices every rank has all parameters"
    for number, line in enumerate(lines):
        if lines[:number].count(line) >= hosts:
            return f"says twice: {line!r}"
        if len(line) > LINE_LETTERS:
            return f"says in more than two lines: {line!r}"
        if finished.status == 0 and not any(re.search(pattern, line) for pattern in (own, *asked, *may_say)):
            return f"says, though nothing is wrong: {line!r}"
    return ""


def refusal(pattern, finished):
    for line in of_castor(finished):
        if re.search(pattern, line):
            if finished.status == 0:
                return False, f"says {line!r} but ends with status 0"
            if finished.timed_out or finished.left_running:
                return False, f"says {line!r} but does not end"
            return True, "refused: " + line.rpartition("castor: ")[2].strip()
    return False, f"expected a refusal like {pattern!r}, found status {finished.status}"
