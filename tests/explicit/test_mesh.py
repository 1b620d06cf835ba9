"""Meshes, sharding specifications and conversions: the figures are worked out by hand from the formulas; parts are cut from whole
tensors. tests/unit/parallel has all cases of the library's part."""
import unittest

import jobs


class Alone(unittest.TestCase):
    def setUp(self):
        self.ways = {how: jobs.once("mesh_rank.py", 1, how)[0] for how in jobs.WAYS}

    def check(self, name, value):
        for how, found in self.ways.items():
            self.assertEqual(found[name], value, how)

    def test_places(self):
        self.check("places", [[1, 1], [2, 3], [[0, 0], [1, 0], [2, 0], [3, 0]], {"0": [2, 6, 10, 14], "1": [0, 1, 2, 3]}, [4, 4], 16, [16]])
        self.check("floats", [[[0], [1]], "castor: [0.5, 1.0] are no ranks: expected a tensor of ints"])
        self.check("local ranks", [[2, 3], 2, 3, [0, 1, 2, 3], False])
        self.check("any ranks", [[1, 0], {"0": [7, 3], "1": [5, 3]}, [1, 7, 5, 3]])

    def test_costs(self):
        # Axis 0: 2 + 0.5 x 1/2 x 1024 = 258; 2 + 512 = 514; all-to-all 2 + 0.5 x 1/4 x 1024 x 1 = 130. Axis 1, of 4: 3 + 0.25 x 3/4 x 1024 = 195;
        # 387; 3 + 0.25 x 3/16 x 1024 x 2 = 99. Flat, of 8 with 3 and 0.5: 3 + 0.5 x 7/8 x 1024 = 451; 899; 3 + 0.5 x 7/64 x 1024 x 4 = 227.
        self.check("mesh costs", [258.1, 514.01, 258.001, 130.001, 195.1, 387.01, 195.001, 99.001, 451.1, 899.01, 451.001, 227.001])

        def row(forward, backward):
            return [{"forward": forward, "backward": backward, "total": round(forward + backward, 6)}, {"forward": forward, "backward": 0.0, "total": forward}]

        # Mixed: 3 + 0.25 x 7/8 x 1024 = 227
        self.check("costs", {"GATHER_FWD_SPLIT_BWD": row(195.1, 0.0), "ALL2ALL_FWD_ALL2ALL_BWD": row(99.001, 99.001), "SPLIT_FWD_GATHER_BWD": row(0.0, 195.1),
                             "ALLREDUCE_FWD_IDENTITY_BWD": row(387.01, 0.0), "IDENTITY_FWD_ALLREDUCE_BWD": row(0.0, 387.01), "MIXGATHER_FWD_SPLIT_BWD": row(227.1, 0.0)})
        self.check("along a list", 899.01)
        self.check("shard cost", 100.0)

    def test_specifications(self):
        self.check("text", ["[S01, R, R]", "DistSpec:\n\tshard_sequence: S01,R,R\n\tdevice_mesh_shape: (4, 4)", True, {"0": [0, 1]}, {"0": [0, 1]}, "[S0, R, S1]"])
        # {-1: [0], -2: [1]} of 3 dimensions is {2: [0], 1: [1]}; the callers' dicts stay as they are
        self.check("dicts", [[[1, [1]], [2, [0]]], [[-2, [1]], [-1, [0]]], [[1, [0, 1]]], [[-1, [1]], [1, [0]]], self.ways[jobs.WAYS[0]]["dicts"][4]])

    def test_bad_input(self):
        for found in self.ways.values():
            parts = ("has no 4 ranks", "rank 0 is twice", "1 numbers for 2 axes", "rank 16 is not in the mesh", "have other ranks", "init_process_group=True")
            for text, part in zip(found["bad meshes"], parts, strict=True):
                self.assertIn(part, text)
            parts = ("length 7", "axis 0 divides twice", "dimension 1 of a tensor that has 1", "axis 2 of a mesh that has 2", "with a dim_partition_dict or", "'X' in a sharding_sequence")
            for text, part in zip(found["bad"], parts, strict=True):
                self.assertIn(part, text)
            self.assertIn("merge_same_dim_mesh_list", found["dicts"][4])

    def test_paths(self):
        self.check("one step", [["[R, S1, R]", "[S0, R, R]"], ["[R, S10, R]", "[R, S1, S0]", "[S01, R, R]", "[S0, R, S1]"], ["[S01, R, R]", "[S0, S1, R]", "[S0, R, S1]"]])
        self.check("all one steps", [2 + 4])  # both axes divide already
        self.check("path", ["[R, S01, R]->[R, S0, R]->[S0, R, R]->[S01, R, R]", [
            "CommSpec:(comm_pattern:GATHER_FWD_SPLIT_BWD, gather_dim:1, shard_dim:1, logical_process_axis:1)",
            "CommSpec:(comm_pattern:ALL2ALL_FWD_ALL2ALL_BWD, gather_dim:1, shard_dim:0, logical_process_axis:0)",
            "CommSpec:(comm_pattern:SPLIT_FWD_GATHER_BWD, gather_dim:0, shard_dim:0, logical_process_axis:1)"], True])
        self.check("nothing to do", [1, 0])


class FourRanks(unittest.TestCase):
    """The mesh is [[3, 0], [1, 2]]."""

    def check(self, name, *values):
        """One value for all ranks, or one each."""
        for how in jobs.WAYS:
            self.assertEqual([found[name] for found in jobs.once("mesh_rank.py", 4, how)], list(values) * (4 // len(values)), how)

    def test_conversions(self):
        self.check("converted wrongly", [])
        self.check("apply", [True, True])

    def test_groups_and_distributed_tensors(self):
        refused, twice = "knows no global ranks", "has its process groups already"
        for rank, found in enumerate(jobs.once("mesh_rank.py", 4, jobs.WAYS[0])):
            # Along axis 0: ranks 0 and 2, 1 and 3; along axis 1: 0 and 1, 2 and 3.
            i, j = divmod(rank, 2)
            self.assertEqual(found["groups"][:9], [[2.0 + 2 * j, 1.0 + 4 * i], [2, 3], True, [2, 2], True, 4, True, None, [j, j + 2]])
            self.assertEqual([part in text for part, text in zip((refused, twice), found["groups"][9:], strict=True)], [True, True])
            self.assertIn("init_logical_process_group()", found["no groups"])
            self.assertEqual(found["distributed"], [True] * 8 + [1, 0, 64, [8, 8], True, False, "DistSpec(S0, S1)"])
            self.assertEqual(found["layouts"][:5], [["DistSpec(S0, R)", "DistSpec(R, R)"], 1, ["DistSpec(S0, S1)", "DistSpec(S01, R)"], True, [4, 4]])
            for text, part in zip(found["layouts"][5:], ("dimension 0", "distribute_tensor() makes one", "expected (4, 8)", "another DeviceMesh"), strict=True):
                self.assertIn(part, text)
            every = [[a, b] for a in range(4) for b in range(4) if a != b]
            self.assertEqual(found["measured"], [every, True, [2, 2], True, True])
            self.assertEqual(found["best mesh"][:3], [[[0, 1], [2, 3]], [[0, 1], [2, 3]], [[0, 3]]])
            self.assertIn("power of two", found["best mesh"][3])

    def test_communications(self):
        # Along axis 0: ranks 3 and 1, 0 and 2. The gradient is the rank's own.
        self.check("all-reduce", [2.0, 1.0], [4.0, 2.0], [2.0, 3.0], [4.0, 4.0])
        # Along axis 1: ranks 3 and 0, 1 and 2. The gradient is the sum of rank + 1.
        self.check("identity", [0.0, 5.0], [1.0, 5.0], [2.0, 5.0], [3.0, 5.0])
        self.check("mixed gather", [True, True])
        self.check("forward only", False)
        for found in jobs.once("mesh_rank.py", 4, jobs.WAYS[0]):
            self.assertIn("does not divide into 2", found["indivisible"])


if __name__ == "__main__":
    unittest.main()
