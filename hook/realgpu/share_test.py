"""Tests the parts of share.py that need no GPU: python3 -m unittest share_test."""

import unittest

import share


class TestShare(unittest.TestCase):
    def test_parse_bytes(self):
        for text, want in (("8GiB", 8 << 30), ("1.5KiB", 1536), ("7B", 7), ("42", 42)):
            self.assertEqual(share.parse_bytes(text), want)
        with self.assertRaises(ValueError):
            share.parse_bytes("much")

    def test_percentile(self):
        values = list(range(1, 101))
        self.assertEqual(share.percentile(values, 99), 99)
        self.assertEqual(share.percentile(values, 100), 100)
        self.assertEqual(share.percentile([7], 99), 7)
        with self.assertRaises(ValueError):
            share.percentile([], 99)

    def test_accuracy_row(self):
        for allocated, over, missing, ok in ((100, 0, 0, True), (101, 1, 0, False), (91, 0, 9, True), (90, 0, 10, False)):
            row = share.accuracy_row(100, allocated, 10)
            self.assertEqual((row["over"], row["missing"], row["ok"]), (over, missing, ok))

    def test_overhead(self):
        self.assertAlmostEqual(share.overhead([10, 10, 99], [10.1, 10.1, 11]), 1.0)

    def test_colocation_row(self):
        row = share.colocation_row("orion", [1.0] * 99 + [9.0], [2.0] * 100, 10, 4)
        self.assertEqual((row["p99_alone_ms"], row["p99_ms"], row["slowdown"], row["train"]), (1.0, 2.0, 2.0, 0.4))

    def test_compute_row(self):
        row = share.compute_row([30, 60], [29, 64], 100)
        self.assertEqual((row["shares"], row["got"], row["ok"]), ("30 % + 60 %", "29.00 % + 64.00 %", False))
        self.assertTrue(share.compute_row([30, 60], [28, 62], 100)["ok"])

    def test_order(self):
        self.assertEqual(share.order(["a", "b"], 3), ["a", "b", "b", "a", "a", "b"])

    def test_table(self):
        self.assertEqual(share.table([{"a": 1, "b": 0.5}]), "| a | b |\n|---|---|\n| 1 | 0.500 |\n")
        self.assertEqual(share.table([]), "")


if __name__ == "__main__":
    unittest.main()
