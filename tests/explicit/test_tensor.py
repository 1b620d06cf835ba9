"""castor.tensor: groups and blocks by hand, operators beside PyTorch's on whole tensors."""
import unittest

import jobs
import runner

SIZES = (1, 2, 4) if runner.LENGTH == "all" else (1, 4)


class Tensors(unittest.TestCase):
    def each(self):
        for how in jobs.WAYS:
            for world in SIZES:
                for rank, found in enumerate(jobs.once("tensor_rank.py", world, how)):
                    yield world, rank, found

    def test_groups(self):
        for world, rank, found in self.each():
            ranks = list(range(world))
            self.assertEqual(found["groups"]["default"], [rank, ranks, world, 1, world, [rank], ranks, 0, rank])
            self.assertEqual(found["groups"]["tp"], [rank, ranks, world, world, 1, ranks, [rank], rank, 0])
            self.assertEqual(found["groups"]["short names"], found["groups"]["default"])
            self.assertEqual(found["unsorted ranks are the caller's"], [world - 1, *range(world - 1)])
            self.assertEqual(found["outside"], [None] * 4)
            self.assertEqual(found["equal"], [True, world == 1, True, True])
            none, text, *rest = found["cpu groups"]
            self.assertEqual([none, *rest], [False, True, "gloo", 1])
            self.assertIn("call set_cpu_groups()", text)
            self.assertIn("call castor.launch", found["before launch"])
        found = jobs.once("tensor_rank.py", 4, jobs.WAYS[-1])
        # tensor lists [0, 1] and [2, 3], data lists [0, 2] and [1, 3]
        self.assertEqual([one["two by two"][5:] for one in found], [[[0, 1], [0, 2], 0, 0], [[0, 1], [1, 3], 1, 0], [[2, 3], [0, 2], 0, 1], [[2, 3], [1, 3], 1, 1]])
        self.assertEqual([one["some ranks"][1:] for one in found], [
            [[1, 3], 2, 2, 1, None, None, None, None], [[1, 3], 2, 2, 1, [1, 3], [1], 0, 0], [[1, 3], 2, 2, 1, None, None, None, None], [[1, 3], 2, 2, 1, [1, 3], [3], 1, 0]])

    def test_groups_that_cannot_be(self):
        for world, rank, found in self.each():
            self.assertIn(f"got rank {rank + 1} in the process of rank {rank}", found["bad groups"][0])
            for text in found["bad groups"]:
                self.assertTrue(text.startswith("castor: "), text)

    def test_specifications(self):
        for _, _, found in self.each():
            self.assertEqual(found["specifications"], [
                "DistSpec(placement=DistPlacementPattern.REPLICATE)", "DistSpec(placement=DistPlacementPattern.SHARD, dims=[0], num_partitions=[2])",
                True, False, True, "s", True, ["TP1D", "TP2D", "TP2P5D", "TP3D"], ["MODEL", "NONMODEL"], True])
            for text, part in zip(found["bad specifications"], ("one number of partitions for each", "partitions of 1 or more", "not in ComputePattern.TP2D", "no ComputePattern")):
                self.assertIn(part, text)

    def test_blocks_and_their_gradients(self):
        for world, rank, found in self.each():
            self.assertEqual(found["moved wrongly"], [])
            one = world == 1  # then the specification is as good as replicated
            self.assertEqual(found["a block"], [[4, 5], [4, 5], [4 * world, 5], 4 * world, 5, one, True, True, False])
            self.assertEqual(found["view"], [[20 * world], [4, 5, 1], [4, 5]])
            self.assertEqual(found["gathered in place"], [[4 * world, 5], [float(r) for r in range(world) for _ in range(4)], True])
            self.assertEqual(found["its gradient goes with it"], [[8 // world, 8], [8 // world, 8], True])
            self.assertEqual(found["back"], [[8, 8], True, True])
            self.assertEqual(found["a group of one"], [True, [3, 5]])
            self.assertEqual(found["default specification"], [True, True, world])

    def test_what_is_refused(self):
        for _, _, found in self.each():
            for name, part in (("a result", "use redistribute()"), ("uneven", "does not divide"), ("too many parts", "makes"), ("no such dimension", "dimension 2")):
                self.assertIn(part, found[name])

    def test_between_groups(self):
        for world, rank, found in self.each():
            self.assertTrue(found["another group"][0])
            self.assertIn("to_replicate_() first", found["another group"][1])
            if world == 4:
                self.assertIn("tp 1 or dp 1", found["tp 2 and dp 2"])
                self.assertEqual(found["between groups"], [True, [2, 3, 1], True, True])

    def test_what_a_colotensor_is(self):
        for world, _, found in self.each():
            self.assertEqual(found["kinds"], [True, True, True, True, True, False, True, 2, True])
            self.assertEqual(found["compute pattern"], [True, True])
            self.assertEqual(found["copies"], [[True] * 8] * 3)
            names = ["extra", "inner.table", "weight", "inner.weight", "inner.bias"]
            self.assertEqual(found["named"], [names, [f"m.{name}" for name in names], ["extra", "weight"]])
            self.assertEqual(found["state dict"], [["weight", "inner.weight", "inner.bias"], [], 48.0])
            self.assertEqual(found["DTensor"], [[8, 8], True, True, True, True, world])

    def test_hooks(self):
        for _, _, found in self.each():
            inner = [f"{name} {when} 1" for when in ("pre_forward", "post_forward") for name in ("inner", "second")]
            self.assertEqual(found["hooks"], [
                "outer pre_forward 2", "outer post_forward 2", *inner, "inner pre_backward 1", "second pre_backward 1",
                "inner post_backward 1", "second post_backward 1", "outer pre_backward 2", "outer post_backward 2"])
            # Of 16 inputs 8 + 1 = 9 and of 16 inputs 1, by 8 outputs of the second: 2 rows x (9 x 64 + 8 x 64)
            self.assertEqual(found["hooks change no gradient"], [2 * (9 * 64 + 8 * 64), 2 * 8 * 8])

    def test_operators_beside_whole_tensors(self):
        for how in jobs.WAYS:
            for world in SIZES:
                for found in jobs.once("tensor_ops_rank.py", world, how):
                    self.assertEqual(found["wrong"], [], f"{world} ranks, {how}")
                    self.assertGreater(found["compared"], 2000)
                    self.assertIn("writes to a sharded ColoTensor", found["written otherwise"])
                    self.assertIn("max_norm", found["max_norm"])
                    self.assertIn("in 0 to 7", found["index outside"])


if __name__ == "__main__":
    unittest.main()
