#!/usr/bin/env python3
"""Prints the Markdown table of a result file: bench/table.py [--summary] RESULTS.json

--summary prints one row for each system, where the benchmark has such a table. `make tables` puts the tables into the pages.
"""

import argparse
import importlib
import json
import os
import sys


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--summary", action="store_true")
    parser.add_argument("results")
    args = parser.parse_args()
    try:
        with open(args.results) as file:
            results = json.load(file)
        sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), results["bench"]))
        summary = importlib.import_module("summary")
        print(summary.brief_markdown(results) if args.summary else summary.markdown(results))
    except (OSError, ValueError, KeyError, AttributeError, ModuleNotFoundError) as error:
        sys.exit(f"table.py: {args.results} is not a result file with such a table: {error!r}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
