"""A memory budget that the model's data does not fit into: what castor.memory_stats() says, and CASTOR_MOMENTS_DIR."""
import os
import tempfile
import unittest

import jobs
import runner

RANKS = 2
BUDGET = 5 << 20
SETTINGS = {"CASTOR_MEMORY_BUDGET": str(BUDGET), "CASTOR_CHUNK_SIZE": "64K"}
PAGE = 4096


def recording(path):
    """Its chunks by number, (kind, bytes); its moments in order, (event, other bytes, chunks used)."""
    chunks, moments = {}, []
    with open(path, encoding="ascii") as lines:
        assert next(lines) == "castor-moments 1\n"
        for line in lines:
            word, *words = line.split()
            if word == "chunk":
                chunks[int(words[0])] = words[1], int(words[2])
            elif word == "moment":
                moments.append((words[0], int(words[3]), []))
            elif word == "use":
                moments[-1][2].append(int(words[0]))
            else:
                assert word == "end" and int(words[0]) > 0 and not next(lines, None), line
    return chunks, moments


class Budget(unittest.TestCase):
    def test_where_data_is(self):
        ranks = jobs.job("budget_rank.py", RANKS, jobs.GEMINI, **SETTINGS)
        plain = jobs.job("budget_rank.py", RANKS, jobs.NONE)
        self.assertEqual([found["losses"] for found in ranks], [found["losses"] for found in plain])
        numbers = ranks[0]["parameters"]
        paged, small = sum(n for n in numbers if n * 4 >= PAGE), sum(n for n in numbers if n * 4 < PAGE)
        for kind, each in (("parameters", 4), ("optimizer_states", 8)):
            sums = [found["memory"][kind]["host"] + found["memory"][kind]["disk"] for found in ranks]
            # What is smaller than a page may lie in no chunk, or has room of up to a page.
            self.assertGreaterEqual(sum(sums), each * paged)
            self.assertLessEqual(sum(sums), each * (paged + small) + PAGE * len(numbers) * (each // 4 + 1))
        for found in ranks:
            memory = found["memory"]
            self.assertEqual(memory["budget"], BUDGET)
            self.assertGreater(memory["optimizer_states"]["disk"], 0)
            self.assertGreater(memory["moves"], 0)
            self.assertGreaterEqual(memory["moved"], memory["moves"] * PAGE)
            self.assertTrue(0 <= memory["prefetch"]["hit_rate"] <= 1, memory["prefetch"])

    @runner.long
    def test_shares_of_the_budget(self):
        def memory(warmup, steady, steps):
            settings = {"CASTOR_WARMUP_NON_MODEL_DATA_RATIO": warmup, "CASTOR_STEADY_CAP_RATIO": steady, **SETTINGS}
            return [found["memory"] for found in jobs.job("budget_rank.py", RANKS, jobs.GEMINI, steps, **settings)]

        def moves(warmup):
            return sum(found["moves"] for found in memory(warmup, "0.9", "1"))

        def resident(steady):
            return sum(found[kind]["host"] for found in memory("0.8", steady, "5") for kind in ("parameters", "gradients"))

        self.assertLess(moves("0.05"), moves("0.95"), "in the first step, with more room and with less")
        self.assertLess(resident("0.2"), resident("0.9"), "after the first step, with less room and with more")

    def test_what_was_recorded_is_kept(self):
        with tempfile.TemporaryDirectory(prefix="castor-explicit-") as folder:
            jobs.job("budget_rank.py", RANKS, jobs.GEMINI, CASTOR_MOMENTS_DIR=folder, **SETTINGS)
            self.assertEqual(sorted(os.listdir(folder)), ["moments.0", "moments.1"])
            for name in os.listdir(folder):
                chunks, moments = recording(os.path.join(folder, name))
                self.assertEqual({kind for kind, _ in chunks.values()}, {"parameter", "gradient", "state"})
                used = {event: set() for event, _, _ in moments}
                for event, _, uses in moments:
                    used[event].update(uses)
                self.assertLessEqual({"forward", "gradient", "optimizer"}, set(used))
                self.assertEqual({chunks[number][0] for number in used["forward"]}, {"parameter"})
                self.assertEqual({chunks[number][0] for number in used["optimizer"]}, {"parameter", "gradient", "state"})
                self.assertEqual(used["optimizer"] | used["forward"] | used["gradient"], set(chunks), "each chunk is used in a step")
                self.assertGreater(max(other for _, other, _ in moments), 0)

    def test_a_folder_that_is_not_there(self):
        command = [*runner.ranks(RANKS)[1:], os.path.join(jobs.FOLDER, "budget_rank.py")]
        with tempfile.TemporaryDirectory(prefix="castor-explicit-") as folder:
            done = jobs.start(command, jobs.GEMINI, EXPLICIT_TEST_FOUND=folder, CASTOR_MOMENTS_DIR=f"{folder}/none", **SETTINGS)
        self.assertEqual(done.returncode, 0, done.stderr)
        for rank in range(RANKS):
            self.assertRegex(done.stderr, rf"cannot write \S+/none/moments\.{rank} \(errno 2\): CASTOR_MOMENTS_DIR needs a directory")


if __name__ == "__main__":
    unittest.main()
