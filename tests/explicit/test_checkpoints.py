"""castor.checkpoint_io: what one process saves and loads, and files that must be refused."""
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
            "a huge header": "claims 4611686018427387904 bytes", "overlapping": "begins at byte", "a changed bit in a shard": "its checksum is another one",
            "shards are swapped": "its checksum is another one", "swapped, without sums": "they are of different saves", "another type": "torch.int32 in the file",
            "another shape": "shape (25,) in the file, (24,) in the model", "two formats": "holds several checkpoints", "a changed bit": "another checksum",
            "another model's index": "shape (40,) in the file", "a pipe": "is no regular file", "a folder": "there is no model.safetensors",
            "index: '../../etc/passwd'": "files of its own folder only", "optimizer: of another class": "another class of optimizer",
            "optimizer: of another model": "'exp_avg' of parameter 0 has shape (25, 16)", "optimizer: other groups": "its groups have [2] parameters",
        }.items():
            self.assertIn(part, self.found["refused"][case], case)

    def test_sound_files_are_not_refused(self):
        self.assertEqual(len(self.found["loads"]), 7)
        self.assertEqual([case for case, loaded in self.found["loads"].items() if not loaded], [])


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
