"""The examples of the pages about the explicit API do what the pages say."""
import os
import re
import unittest

import jobs

DOCS = os.path.join(os.path.dirname(os.path.dirname(jobs.FOLDER)), "docs")
PAGES = ("explicit.md", "nn.md", "tensors.md", "pipelines.md", "booster.md", "checkpoints.md", "hybrid.md")


class Docs(unittest.TestCase):
    def test_examples_print_what_stands_under_them(self):
        for name in PAGES:
            with open(os.path.join(DOCS, name)) as file:
                page = file.read()
            examples = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```\n", page, re.S)
            self.assertEqual(len(examples), page.count("```python"), f"{name}: an example without its output")
            self.assertGreater(len(examples), 0)
            for number, (code, output) in enumerate(examples):
                with self.subTest(page=name, number=number):
                    done = jobs.start(["-c", code], jobs.NONE if name in ("booster.md", "hybrid.md") else jobs.GEMINI)
                    self.assertEqual((done.returncode, done.stdout), (0, output), done.stderr)


if __name__ == "__main__":
    unittest.main()
