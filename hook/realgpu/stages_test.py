"""Tests the stages of runs, with processes that need no GPU: python3 -m unittest stages_test."""

import sys
import unittest

import stages

CHILD = "import stages, json; stages.stage('ready'); stages.stage('warm'); print(json.dumps({'n': %d}))"


def command(code):
    return [sys.executable, "-B", "-c", code]


class TestStages(unittest.TestCase):
    def test_stages(self):
        run = stages.Run(command("print('some text');" + CHILD % 7))
        run.go("ready", "warm")
        self.assertEqual(run.result(), {"n": 7})

    def test_failed(self):
        run = stages.Run(command("raise SystemExit(3)"))
        with self.assertRaisesRegex(SystemExit, "exit status 3"):
            run.go("ready")
        run = stages.Run(command("import stages; stages.stage('ready')"))
        run.go("ready")
        with self.assertRaisesRegex(SystemExit, "exit status 0"):
            run.result()

    def test_no_parent(self):
        run = stages.Run(command("import stages; stages.stage('ready')"))
        run.process.stdin.close()
        run.process.stdin = None
        with self.assertRaisesRegex(SystemExit, "exit status 1"):
            run.result()

    def test_crash_at_the_end(self):
        run = stages.Run(command("print('{}', flush=True); raise SystemExit(4)"))
        self.assertEqual(run.result(), {})
        with self.assertRaisesRegex(SystemExit, "exit status 4"):
            run.close()

    def test_given_up(self):
        run = stages.Run(command(CHILD % 1))
        run.close()
        self.assertEqual(run.process.returncode, 1)

    def test_reach(self):
        run = stages.Run(command(CHILD % 5))
        run.reach("ready")
        run.reach("ready")
        run.go("ready", "warm")
        self.assertEqual(run.result(), {"n": 5})

    def test_batches(self):
        made, ready = [], []

        def make(i):
            made.append(i)
            return i

        for i, got in enumerate(stages.batches([lambda i=i: make(i) for i in range(5)], 2, ready.append)):
            self.assertEqual(got, i)
            self.assertEqual(made, ready)
            self.assertEqual(len(made), min(i // 2 * 2 + 2, 5))


if __name__ == "__main__":
    unittest.main()
