#!/usr/bin/env python3
"""Prints the Markdown table of a result file: bench/table.py RESULTS.json [--update FILE | --check FILE]

The table stands between two markers, `<!-- bench:NAME begin -->` and `<!-- bench:NAME end -->`, where NAME is the
benchmark's. --update puts it between the same markers of FILE; --check says whether FILE holds it already.
"""

import argparse
import importlib
import json
import os
import re
import sys


def marked(results):
    name = results["bench"]
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), name))
    text = importlib.import_module("summary").markdown(results)
    return name, f"<!-- bench:{name} begin -->\n{text}\n<!-- bench:{name} end -->"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results")
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--update", metavar="FILE")
    action.add_argument("--check", metavar="FILE")
    args = parser.parse_args()
    try:
        with open(args.results) as file:
            name, table = marked(json.load(file))
    except (OSError, ValueError, KeyError, ModuleNotFoundError) as error:
        sys.exit(f"table.py: {args.results} is not a result file of a benchmark: {error!r}")
    path = args.update or args.check
    if not path:
        print(table)
        return 0
    with open(path) as file:
        before = file.read()
    pattern = re.compile(f"<!-- bench:{re.escape(name)} begin -->.*?<!-- bench:{re.escape(name)} end -->", re.DOTALL)
    if len(pattern.findall(before)) != 1:
        sys.exit(f"table.py: {path} must hold the markers of `{name}` once: {table.splitlines()[0]} ... {table.splitlines()[-1]}")
    after = pattern.sub(lambda _: table, before)
    if args.check and after != before:
        sys.exit(f"table.py: the table in {path} is not that of {args.results}; run {sys.argv[0]} {args.results} --update {path}")
    if args.update and after != before:
        with open(path, "w") as file:
            file.write(after)
    return 0


if __name__ == "__main__":
    sys.exit(main())
