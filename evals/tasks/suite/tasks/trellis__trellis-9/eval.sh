#!/bin/bash
set -uxo pipefail
cd /testbed
git config --global --add safe.directory /testbed
cd /testbed
git status
git show
git -c core.fileMode=false diff a18654b8a6d14b8d3b57e097f30c47cf42b74475
git checkout a18654b8a6d14b8d3b57e097f30c47cf42b74475 tests/test_builder.py tests/test_command_line.py
git apply -v - <<'EOF_a18654b8a6d1'
diff --git a/tests/test_builder.py b/tests/test_builder.py
index d86161d..a9abc96 100644
--- a/tests/test_builder.py
+++ b/tests/test_builder.py
@@ -1,6 +1,6 @@
 import unittest
 
-from trellis import CommandFailed, State, build, parse
+from trellis import CommandFailed, State, Target, build, parse
 
 TEXT = """\
 docs: manual
@@ -64,6 +64,34 @@ class BuildTests(unittest.TestCase):
         outcomes = build(self.graph, FILES, self.state, self.run_target, keep_going=True)
         self.assertEqual(outcomes[-1].detail, "util.o failed")
 
+    def test_what_needs_a_skipped_target_is_skipped(self):
+        self.graph.add(Target("app.zip", ("app",)))
+        self.graph.add(Target("release", ("app.zip", "docs")))
+        self.fails = {"main.o"}
+        statuses = dict(self.build(keep_going=True))
+        self.assertEqual((statuses["app.zip"], statuses["release"]), ("skipped", "skipped"))
+        self.assertEqual(self.ran, ["docs", "main.o", "util.o"])
+
+    def test_skipped_by_one_way_of_two(self):
+        self.graph.add(Target("all", ("docs", "app")))
+        self.fails = {"util.o"}
+        self.assertEqual(self.build(keep_going=True)[-1], ("all", "skipped"))
+
+    def test_skipped_is_built_when_the_failure_is_mended(self):
+        self.graph.add(Target("app.zip", ("app",)))
+        self.fails = {"main.o"}
+        self.build(keep_going=True)
+        self.assertNotIn("app.zip", self.state)
+        self.fails = set()
+        self.build(keep_going=True)
+        self.assertEqual(self.ran, ["main.o", "app", "app.zip"])
+
+    def test_two_failures(self):
+        self.graph.add(Target("app.zip", ("app",)))
+        self.fails = {"docs", "util.o"}
+        found = self.build(keep_going=True)
+        self.assertEqual([name for name, status in found if status == "failed"], ["docs", "util.o"])
+
     def test_failure_is_tried_again(self):
         self.build()
         self.fails = {"main.o"}
diff --git a/tests/test_command_line.py b/tests/test_command_line.py
index 7dbaf31..5ee6430 100644
--- a/tests/test_command_line.py
+++ b/tests/test_command_line.py
@@ -48,6 +48,21 @@ class CommandLineTests(unittest.TestCase):
         code, out, _ = self.run_main("bad", "upper.txt", "--keep-going", text=text)
         self.assertEqual((code, out), (1, "bad failed (exit code 3)\nupper.txt built\n"))
 
+    def test_keep_going_over_two_steps(self):
+        text = "bad: notes.txt\n    exit 3\nnear: bad\nfar: near\n" + TEXT
+        code, out, _ = self.run_main("--keep-going", text=text)
+        self.assertEqual(code, 1)
+        self.assertEqual(
+            [line.split()[:2] for line in out.splitlines()],
+            [
+                ["bad", "failed"],
+                ["near", "skipped"],
+                ["far", "skipped"],
+                ["upper.txt", "built"],
+                ["both.txt", "built"],
+            ],
+        )
+
     def test_error(self):
         code, _, err = self.run_main("lower.txt")
         self.assertEqual((code, err), (2, "trellis: there is no target lower.txt\n"))

EOF_a18654b8a6d1
: '>>>>> Start Test Output'
python3 -m unittest discover -v -t . -s tests
: '>>>>> End Test Output'
git checkout a18654b8a6d14b8d3b57e097f30c47cf42b74475 tests/test_builder.py tests/test_command_line.py
