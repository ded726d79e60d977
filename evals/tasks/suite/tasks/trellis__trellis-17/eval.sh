#!/bin/bash
set -uxo pipefail
cd /testbed
git config --global --add safe.directory /testbed
cd /testbed
git status
git show
git -c core.fileMode=false diff 76351655b2af205f97905d85dff1b00a83f863e6
git checkout 76351655b2af205f97905d85dff1b00a83f863e6 tests/test_builder.py tests/test_order.py tests/test_planning.py
git apply -v - <<'EOF_76351655b2af'
diff --git a/tests/test_builder.py b/tests/test_builder.py
index 9077141..332e6f6 100644
--- a/tests/test_builder.py
+++ b/tests/test_builder.py
@@ -43,6 +43,18 @@ class BuildTests(unittest.TestCase):
             self.build({**FILES, "util.c": ""}), [("util.o", "built"), ("app", "built")]
         )
 
+    def test_what_only_comes_first_is_built_alone(self):
+        self.graph = parse(TEXT.replace("docs: manual", "docs: manual | app"))
+        self.build()
+        self.assertEqual(self.ran, ["main.o", "util.o", "app", "docs"])
+        self.build({**FILES, "main.c": ""})
+        self.assertEqual(self.ran, ["main.o", "app"])
+
+    def test_what_comes_first_and_fails(self):
+        self.graph = parse(TEXT.replace("docs: manual", "docs: manual | app"))
+        self.fails = {"app"}
+        self.assertEqual(self.build(keep_going=True)[-1], ("docs", "skipped"))
+
     def test_wanted(self):
         self.build(wanted=["main.o"])
         self.assertEqual(self.ran, ["main.o"])
diff --git a/tests/test_order.py b/tests/test_order.py
index e6127ad..30e9287 100644
--- a/tests/test_order.py
+++ b/tests/test_order.py
@@ -42,5 +42,12 @@ class DownstreamTests(unittest.TestCase):
     def test_of_a_target(self):
         self.assertEqual(downstream(graph(a="b", b="x", c="x"), "b"), ["a"])
 
+    def test_what_only_waits(self):
+        waiting = Graph([Target("a", ("x",), after=("b",)), Target("b", ("y",))])
+        waiting.add(Target("c", ("a",)))
+        self.assertEqual(downstream(waiting, "y"), ["b"])
+        self.assertEqual(downstream(waiting, "b"), [])
+        self.assertEqual(downstream(waiting, "x"), ["a", "c"])
+
     def test_nothing(self):
         self.assertEqual(downstream(graph(a="x"), "a"), [])
diff --git a/tests/test_planning.py b/tests/test_planning.py
index d88ee62..163b2d0 100644
--- a/tests/test_planning.py
+++ b/tests/test_planning.py
@@ -46,6 +46,14 @@ class PlanTests(unittest.TestCase):
     def test_input_that_is_gone(self):
         self.assertEqual(self.steps(TEXT.replace("main.o util.o", "main.o")), ["app: changed"])
 
+    def test_change_behind_a_bar(self):
+        waiting = TEXT.replace("main.o: main.c", "main.o: main.c | util.o")
+        before = built(waiting, FILES)
+        found = plan(parse(waiting), {**FILES, "util.c": ""}, before)
+        self.assertEqual([step.name for step in found], ["util.o", "app"])
+        found = plan(parse(waiting), {**FILES, "main.c": ""}, before)
+        self.assertEqual([step.name for step in found], ["main.o", "app"])
+
     def test_wanted(self):
         self.assertEqual(
             self.steps(wanted=["main.o"], main_c="", util_c=""), ["main.o: changed"]
@@ -67,6 +75,14 @@ class FingerprintTests(unittest.TestCase):
         self.assertEqual(self.of("util.o", FILES), self.of("util.o", {**FILES, "main.c": ""}))
 
 
+    def test_of_what_it_waits_for(self):
+        waiting = parse("a: x | b\nb: y\n")
+        old, new = ({"x": "", "y": content} for content in ("old", "new"))
+        prints = [Fingerprints(waiting, files) for files in (old, new)]
+        self.assertEqual(prints[0].of("a"), prints[1].of("a"))
+        self.assertNotEqual(prints[0].of("b"), prints[1].of("b"))
+
+
 class StateTests(unittest.TestCase):
     def test_there_and_back(self):
         state = State()

EOF_76351655b2af
: '>>>>> Start Test Output'
python3 -m unittest discover -v -t . -s tests
: '>>>>> End Test Output'
git checkout 76351655b2af205f97905d85dff1b00a83f863e6 tests/test_builder.py tests/test_order.py tests/test_planning.py
