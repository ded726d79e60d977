#!/bin/bash
set -uxo pipefail
cd /testbed
git config --global --add safe.directory /testbed
cd /testbed
git status
git show
git -c core.fileMode=false diff d97e6b327d346408206adfaabd5b9bdfe514beb8
git checkout d97e6b327d346408206adfaabd5b9bdfe514beb8 tests/test_blocks.py tests/test_document.py tests/test_wrap.py
git apply -v - <<'EOF_d97e6b327d34'
diff --git a/tests/test_blocks.py b/tests/test_blocks.py
index 0ed8f81..c1db741 100644
--- a/tests/test_blocks.py
+++ b/tests/test_blocks.py
@@ -17,6 +17,12 @@ class ListTests(unittest.TestCase):
     def test_short_definition(self):
         self.assertEqual(definition("em", "a unit", 20), "em: a unit")
 
+    def test_long_definition(self):
+        self.assertEqual(
+            definition("em", "as wide as the type is high", 14),
+            "em: as wide as\n    the type\n    is high",
+        )
+
 
 class TableTests(unittest.TestCase):
     def test_header_counts_for_the_width(self):
diff --git a/tests/test_document.py b/tests/test_document.py
index b2b8a48..e219df2 100644
--- a/tests/test_document.py
+++ b/tests/test_document.py
@@ -29,6 +29,10 @@ class RenderTests(unittest.TestCase):
     def test_definition(self):
         self.assertEqual(render("em :: a unit"), "em: a unit")
 
+    def test_definition_keeps_to_the_width(self):
+        lines = render("em :: as wide as the type is high, whatever it is", 16).splitlines()
+        self.assertLessEqual(max(map(len, lines)), 16)
+
     def test_justified(self):
         self.assertEqual(render("a b c d e f", 6, "justify"), "a  b c\nd e f")
 
diff --git a/tests/test_wrap.py b/tests/test_wrap.py
index 6bcd4be..682d71e 100644
--- a/tests/test_wrap.py
+++ b/tests/test_wrap.py
@@ -21,6 +21,24 @@ class WrapTests(unittest.TestCase):
             ["* one two", "  three"],
         )
 
+    def test_hanging_is_longer(self):
+        self.assertEqual(
+            wrap(TEXT, 20, hanging="      "),
+            ["The quick brown fox", "      jumps over the", "      lazy dog"],
+        )
+
+    def test_initial_is_longer(self):
+        self.assertEqual(
+            wrap(TEXT, 20, initial="Moral: ", hanging="  "),
+            ["Moral: The quick", "  brown fox jumps", "  over the lazy dog"],
+        )
+
+    def test_long_word_behind_a_hanging_indent(self):
+        self.assertEqual(
+            wrap("a extraordinary b c", 6, hanging="   "),
+            ["a", "   extraordinary", "   b c"],
+        )
+
     def test_long_word_sticks_out(self):
         self.assertEqual(wrap("a extraordinary b", 6), ["a", "extraordinary", "b"])
 

EOF_d97e6b327d34
: '>>>>> Start Test Output'
python3 -m unittest discover -v -s tests -t .
: '>>>>> End Test Output'
git checkout d97e6b327d346408206adfaabd5b9bdfe514beb8 tests/test_blocks.py tests/test_document.py tests/test_wrap.py
