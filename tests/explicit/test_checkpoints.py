"""castor.checkpoint_io: what one process saves and loads, and files that must be refused."""
import os
import tempfile
import unittest

import jobs
import runner

FORMATS = [f"{safe}, {shard}" for safe in (False, True) for shard in (False, True)]


class Formats(unittest.TestCase):
    """The script's names are in the comments of its parts."""

    def setUp(self):
        self.found = jobs.once("checkpoint_formats.py", 1, jobs.NONE)[0]

    def check(self, name, value):
        self.assertEqual(self.found[name], value, name)

    def test_every_format_gives_the_same_bits(self):
        self.check("formats", [])
        self.check("versions", [3] * 8)
        for shard in (False, True):
            self.check(f"extra state, {shard}", [[1, "two"], True])
        self.check("half precision", ["torch.float16"])

    def test_names_and_index_are_hugging_faces(self):
        shards = [f"-0000{i}-of-00003" for i in (1, 2, 3)]
        self.check("names after the third save", {
            "safetensors True": [*(f"model{s}.safetensors" for s in shards), "model.safetensors.index.json"],
            "safetensors False": [*(f"pytorch_model{s}.bin" for s in shards), "pytorch_model.bin.index.json"]})
        self.check("names of optimizers", ["pytorch_optim-00001-of-00002.bin", "pytorch_optim-00002-of-00002.bin", "pytorch_optim.bin.index.json",
                                           "pytorch_optim_group.bin"])
        self.assertEqual(*self.found["total size"])
        self.check("tied in the index", ["first.weight", False])
        self.check("shards are small", True)
        self.check("several shards", 3)

    def test_others_read_them(self):
        for name in ("torch.load of one file", "torch.load of shards", "safetensors.load_file", "safetensors.load_model", "torch.load of an optimizer"):
            self.check(name, True)

    def test_others_files_are_read(self):
        for name in ("of safetensors.save_model", "of torch.save"):
            self.check(name, True)

    def test_a_resumed_run_is_the_run_without_interruption(self):
        self.assertEqual(len(self.found["resumed"]), 12)
        for case, equal in self.found["resumed"].items():
            self.assertEqual(equal, [True] * 4, case)

    def test_an_optimizer_with_a_state_of_its_own(self):
        self.check("more than states and groups", [[4.0] * 3, ["pytorch_optim_rest-1.bin"]])

    def test_wrapped_models(self):
        self.check("wrapped", ["bias", "weight"])
        self.check("compiled", ["bias", "weight"])

    def test_strict(self):
        said = "castor: /{} does not fit the model (Sequential); nothing was loaded:\n    {} in the file: '1.bias', '1.weight'"
        self.check("strict", [said.format("short", "missing"), said.format("longer", "unexpected")])
        self.check("not strict", True)
        self.assertIn("unexpected in the file: '0.bias', '0.weight'", self.found["not strict, nothing fits"])

    def test_errors(self):
        self.check("extra state in safetensors", "castor: _extra_state is extra state of type dict, and safetensors holds tensors only: "
                   "save with use_safetensors=False")
        self.check("meta", "castor: the model is on the meta device and has no memory for values: call model.to_empty(device=...) first")
        self.check("saved meta", "castor: weight is on the meta device and has no values to save")
        self.check("scheduler", "castor: /optim.bin is no state dict of a scheduler")
        for text, part in zip(self.found["arguments"], ("pass use_safetensors=True", "pass use_safetensors=False", "size in MiB above 0", "prefix is a text",
                                                        "/short is a file", "not int", "No such file"), strict=True):
            self.assertIn(part, text)


class Hostile(unittest.TestCase):
    def setUp(self):
        self.found = jobs.once("checkpoint_hostile.py", 1, jobs.NONE)[0]

    def test_each_is_refused_by_its_files_name(self):
        self.assertEqual([case for case, text in self.found["refused"].items() if text is None], [])
        self.assertEqual(self.found["unlike"], [])
        self.assertGreater(len(self.found["refused"]), 90)

    def test_none_changes_a_model_or_an_optimizer(self):
        self.assertEqual(self.found["changed"], [])

    def test_none_runs_code(self):
        self.assertFalse(self.found["code has run"])
        for case in ("code", "code without an archive", "code in a shard", "optimizer: code"):
            self.assertIn("CASTOR_UNSAFE_LOAD=1", self.found["refused"][case])

    def test_what_is_said(self):
        for case, part in {
            "a huge header": "claims 4611686018427387904 bytes", "overlapping": "begins at byte", "a changed bit in a tensor": "its tensors have another checksum",
            "exchanged tensors": "its tensors have another checksum",
            "a changed bit, saved in the background": "its tensors have another checksum", "another entry of Castor's": "another checksum",
            "no checksum was filled in": "its tensors have another checksum", "changed, and saved by another program": "if another program has changed it",
            "a changed bit in a shard": "its checksum is another one",
            "shards are swapped": "its checksum is another one", "swapped, without sums": "they are of different saves", "another type": "another checksum", "integers for floats": "0.bias: torch.int32 in the file, torch.float32 in the model",
            "floats for integers": "1.num_batches_tracked: torch.float32 in the file",
            "another shape": "shape (25,) in the file, (24,) in the model", "two formats": "holds several checkpoints", "a changed bit": "another checksum",
            "another model's index": "shape (40,) in the file", "a pipe": "is no regular file", "a folder": "there is no model.safetensors",
            "index: '../../etc/passwd'": "files of its own folder only", "optimizer: of another class": "another class of optimizer",
            "optimizer: of another model": "'exp_avg' of parameter 0 has shape (25, 16)", "optimizer: other groups": "its groups have [2] parameters",
        }.items():
            self.assertIn(part, self.found["refused"][case], case)

    def test_sound_files_are_not_refused(self):
        self.assertEqual(len(self.found["loads"]), 8)
        self.assertEqual([case for case, loaded in self.found["loads"].items() if not loaded], [])


class Ranks(unittest.TestCase):
    def setUp(self):
        self.ranks = jobs.once("checkpoint_rank.py", 2, jobs.GEMINI)

    def check(self, name, value):
        self.assertEqual([found[name] for found in self.ranks], [value] * 2, name)

    def test_rank_0_alone(self):
        self.assertIn("model-00001-of-00004.safetensors", self.ranks[0]["alone"])
        self.check("alone", self.ranks[0]["alone"])
        self.check("resumed", [True] * 3)

    def test_what_all_save_all_may_load_at_once(self):
        for i in range(3):
            self.check(f"all, {i}", [True, i])
        for what in ("file", "shards", "optimizer"):
            self.assertEqual(self.ranks[1][f"in the background, {what}"], True, what)
            self.assertEqual(self.ranks[1][f"failed in the background, {what}"], [True, f"castor: rank 0 could not save /late {what}: its own error says why"])
        self.check("in the background, replaced", True)
        for rank, least in ((0, (3 * 48 + 6 * 4) << 20), (1, 0)):
            self.assertGreaterEqual(self.ranks[rank]["indeed in the background"], least)
        self.assertEqual(self.ranks[0]["failed"], "[Errno 2] No such file or directory: '/no/folder.bin'")
        self.assertEqual(self.ranks[1]["failed"], "castor: rank 0 could not save /no/folder.bin: its own error says why")

    def test_dtensors_are_gathered(self):
        for of in FORMATS:
            self.check(f"gathered, {of}", [True] * 8)

    def test_dtensors_in_parts(self):
        for of in FORMATS:
            self.check(f"parts, {of}", [True] * 2)
            for found in self.ranks:
                self.assertIn("the part was saved of (5, 6), ['S(0)'] on ranks [0, 1], and the model has (5, 6), ['S(1)']", found[f"parts in another layout, {of}"])
                self.assertIn("parameter 0 was saved as (5, 6), ['S(0)']", found[f"optimizer in another layout, {of}"])
                self.assertRegex(found[f"another rank's part, {of}"], "is the part of rank [01] of 2, and this is rank [01] of 2")
                self.assertIn("has the parts of ranks of another job", found["parts of another job"])
                self.assertIn("has the parts of ranks of another job", found["folder of another job"])
        self.check("and nothing is made there", ["rank-00000-of-00004"])
        self.check("a whole beside parts", True)
        names = [f"parts-{safe}-False.rank-0000{rank}-of-00002{suffix}" for safe, suffix in ((False, ".bin"), (True, ".safetensors")) for rank in (0, 1)]
        self.check("parts", [["rank-00000-of-00002", "rank-00001-of-00002"], [*names[:2], "parts-False-True", *names[2:], "parts-True-True"]])
        self.check("index of a part", True)

    def test_colo_tensors(self):
        self.check("ColoTensor", [True] * 3)
        self.check("ColoTensor in parts", True)

    def test_a_rank_that_cannot_write(self):
        self.assertEqual(self.ranks[0]["no folder"], "[Errno 2] No such file or directory: '/no/folder.bin'")
        self.assertIn("shards are saved in a folder", self.ranks[0]["a file is there"])
        self.assertEqual(self.ranks[1]["a file is there"], "castor: rank 0 cannot go on with save_model(): its own error says why")
        self.assertEqual([found["full"] for found in self.ranks], ["No space left on device", None])
        self.check("left over", [])
        self.check("after it", True)

    @runner.long  # what is said when all ranks come: the tests above
    def test_a_rank_that_does_not_come(self):
        first, second = jobs.job("checkpoint_rank.py", 2, jobs.GEMINI, "waits", CASTOR_TIMEOUT="5")
        self.assertEqual(first["alone with DTensors"], "castor: save_model() gathers distributed tensors, so that all ranks must call it, and rank 1 did "
                         "not within 5 s: call it on every rank, or give gather_dtensor=False")
        self.assertEqual(second["never written"], "castor: rank 0 has not saved /not written within 5 s: rank 0 must call the same saves as rank 1")
        self.assertEqual([first["in time"], second["in time"], first["after it"]], [True] * 3)


class Moved(unittest.TestCase):
    """Saved under gemini on two ranks."""

    @runner.long  # the same run goes on without a plugin's model in Ranks.test_rank_0_alone
    def test_under_other_plugins_and_numbers_of_ranks(self):
        whole, = jobs.job("checkpoint_moved.py", 1, jobs.NONE, "whole", "unused")
        with tempfile.TemporaryDirectory(prefix="castor-moved-") as folder:
            jobs.job("checkpoint_moved.py", 2, jobs.GEMINI, "save", folder)
            for ranks, plugin in ((1, "none"), (4, "ddp"), (2, "zero1"), (2, "none"), (4, "gemini")):  # powers of two: their means are exact
                for found in jobs.job("checkpoint_moved.py", ranks, plugin, "load", folder):
                    self.assertEqual(found, whole, f"{plugin}, {ranks} ranks")

    @runner.long  # the format is Moved's; that the values are float: here
    def test_masters_of_16_bit_parameters(self):
        with tempfile.TemporaryDirectory(prefix="castor-moved-") as folder:
            saved = jobs.job("checkpoint_moved.py", 2, jobs.GEMINI, "save", folder, CASTOR_PRECISION="bf16")
            self.assertEqual({row[3][0] for row in saved[0].values()}, {"torch.float32"})
            first, = jobs.job("checkpoint_moved.py", 1, jobs.NONE, "load", folder)
            self.assertEqual({row[3][0] for row in first.values()}, {"torch.float32"})
            again = jobs.job("checkpoint_moved.py", 2, jobs.GEMINI, "load", folder, CASTOR_PRECISION="bf16")
            whole = jobs.job("checkpoint_moved.py", 2, jobs.GEMINI, "whole", folder, CASTOR_PRECISION="bf16")
            self.assertEqual(again, whole)


class SingleProcess(unittest.TestCase):
    @runner.long  # torch.save under --nproc goes through the same code: semantics
    def test_each_rank_has_the_files(self):
        script = os.path.join(jobs.FOLDER, "checkpoint_single.py")
        with tempfile.TemporaryDirectory(prefix="castor-single-") as alone, tempfile.TemporaryDirectory(prefix="castor-single-") as several:
            expected = jobs.start([script], jobs.NONE, cwd=alone)
            self.assertEqual(expected.stdout.count("the same"), 24, expected.stderr)
            found = jobs.start([script], jobs.GEMINI, nproc=2, cwd=several)
            self.assertEqual((found.returncode, found.stdout), (0, expected.stdout), found.stderr)
            with open(os.path.join(several, "log", "rank1.out")) as file:
                self.assertEqual(file.read(), expected.stdout)
            names = [sorted(n for n in os.listdir(folder) if n != "log") for folder in (alone, several)]
            self.assertEqual(names, [["lr.pt", "mFalse", "mTrue", "oFalse", "oTrue"]] * 2)


class Memory(unittest.TestCase):
    @runner.long  # a figure, not a result
    def test_two_shards_at_most(self):
        found, = jobs.job("checkpoint_memory.py", 1, jobs.NONE)
        self.assertEqual(len(found["peaks"]), 10)
        for what, mib in found["peaks"].items():
            self.assertLess(mib, 2 * 32 + 16, what)


class Others(unittest.TestCase):
    def check(self, name, value):
        self.assertEqual(jobs.once("checkpoint_others.py", 1, jobs.NONE)[0][name], value, name)

    @runner.long  # the names, the index and the files' own readers: Formats
    def test_hugging_face(self):
        for kind in ("gpt2", "bert"):
            for of in FORMATS:
                self.check(f"from_pretrained, {kind}, {of}", [True, True, [], [], []])
            self.check(f"of save_pretrained, {kind}", [True, True])
            self.check(f"into an untied model, {kind}", True)

    @runner.long  # what is converted is saved and loaded by what Formats tests
    def test_dcp(self):
        for name in ("to DCP", *(f"from DCP, {of}" for of in FORMATS), "of DCP's writer for Hugging Face, hf", "of DCP's writer for Hugging Face, hf-whole"):
            self.check(name, True)
        self.check("DCP with more than a model", "castor: /theirs has more than a model: 'step' is no tensor. Give the model's prefix, such as "
                   "prefix='model.'; names begin with model, step")
        self.check("DCP without that prefix", "castor: no name in /theirs begins with 'no.': names begin with model, step")
        self.check("DCP as a checkpoint", "castor: /theirs is a checkpoint of torch.distributed.checkpoint: convert it with "
                   "castor.checkpoint_io.from_dcp(folder, checkpoint)")

    @runner.long  # without the option: Hostile
    def test_code_runs_on_request(self):
        self.assertTrue(jobs.job("checkpoint_trusted.py", 1, jobs.NONE, CASTOR_UNSAFE_LOAD="1")[0]["code has run"])


if __name__ == "__main__":
    unittest.main()
