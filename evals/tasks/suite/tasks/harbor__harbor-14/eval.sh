#!/bin/bash
set -uxo pipefail
cd /testbed
git config --global --add safe.directory /testbed
cd /testbed
git status
git show
git -c core.fileMode=false diff 08d875d8258839bd1c5ade781e4527702e648b60
git checkout 08d875d8258839bd1c5ade781e4527702e648b60 tests/test_lines.py tests/test_main.py tests/test_values.py tests/test_writer.py
git apply -v - <<'EOF_08d875d82588'
diff --git a/tests/test_lines.py b/tests/test_lines.py
index 86f875d..ec701a7 100644
--- a/tests/test_lines.py
+++ b/tests/test_lines.py
@@ -16,6 +16,14 @@ class CommentTests(unittest.TestCase):
     def test_hash_within_a_word(self):
         self.assertEqual(without_comment("room = a#4"), "room = a#4")
 
+    def test_hash_in_quotes(self):
+        self.assertEqual(without_comment('a = "b # c"'), 'a = "b # c"')
+        self.assertEqual(without_comment('a = "#b", " #c"  # d'), 'a = "#b", " #c"')
+
+    def test_hash_between_quotes(self):
+        self.assertEqual(without_comment('a = "b" # "c"'), 'a = "b"')
+        self.assertEqual(without_comment('a = "b ""c"" # d" # e'), 'a = "b ""c"" # d"')
+
 
 class LogicalLineTests(unittest.TestCase):
     def test_numbers(self):
diff --git a/tests/test_main.py b/tests/test_main.py
index 5254e6b..48055b9 100644
--- a/tests/test_main.py
+++ b/tests/test_main.py
@@ -10,6 +10,8 @@ FILES = {
     "site.conf": "[net]\nport = 7000\nallow = a, b\n",
     "quay.conf": "[net]\nport = 7001\nallow += c\n",
     "torn.conf": "[net\n",
+    "sign.conf": '[sign]\ntext = "Berth # 4", "the ""Anna"""  # new\n',
+    "flat.conf": '[sign]\ntext = "Berth # 4", "the ""Anna"""\n',
 }
 
 
@@ -45,6 +47,13 @@ class CommandLineTests(unittest.TestCase):
             "[net]\nallow = a, b, c\nport = 7001\n",
         )
 
+    def test_flat_can_be_read(self):
+        (_, once, _), (_, twice, _) = (
+            self.run_main(name, "--flat") for name in ("sign.conf", "flat.conf")
+        )
+        self.assertEqual(once, FILES["flat.conf"])
+        self.assertEqual(twice, once)
+
     def test_mistakes(self):
         code, _, err = self.run_main("torn.conf")
         self.assertEqual(code, 1)
diff --git a/tests/test_values.py b/tests/test_values.py
index 26df2df..ed2f988 100644
--- a/tests/test_values.py
+++ b/tests/test_values.py
@@ -20,6 +20,10 @@ class ItemTests(unittest.TestCase):
     def test_quotes_keep_commas_and_space(self):
         self.assertEqual(items('"a, b", " c "'), ["a, b", " c "])
 
+    def test_doubled_quotes(self):
+        self.assertEqual(items('"""Anna"""'), ['"Anna"'])
+        self.assertEqual(items('"5"" pipe", """, """'), ['5" pipe', '", "'])
+
     def test_unclosed_quote(self):
         for text in ('"a', 'a, "b, c', '5" pipe'):
             with self.assertRaisesRegex(ValueError, "unclosed quote"):
diff --git a/tests/test_writer.py b/tests/test_writer.py
index 423f37c..32d6a0c 100644
--- a/tests/test_writer.py
+++ b/tests/test_writer.py
@@ -27,6 +27,21 @@ class WriterTests(unittest.TestCase):
         before = layer(a="two words", b="a, b", c=" c ", d="", e="a=b")
         self.assertEqual(loads(dumps(before)).settings, before.settings)
 
+    def test_hash(self):
+        written = dumps(layer(a="# 4", b="Berth # 4", c=", #"))
+        self.assertEqual(written, '[sign]\na = "# 4"\nb = "Berth # 4"\nc = ", #"\n')
+        self.assertEqual(loads(written)["sign.a"], ["# 4"])
+
+    def test_quotes_are_doubled(self):
+        written = dumps(layer(a='"Anna"', b='5" pipe'))
+        self.assertEqual(written, '[sign]\na = """Anna"""\nb = "5"" pipe"\n')
+
+    def test_marks_of_all_kinds_are_read_back(self):
+        texts = ('"', '""', '"#', ' # "', '", "', 'a "b" # c, d', '""" #', "it's # 1")
+        for text in texts:
+            before = layer(a=text, b="last")
+            self.assertEqual(loads(dumps(before)).settings, before.settings)
+
     def test_line_breaks(self):
         with self.assertRaisesRegex(ValueError, "sign.a: a line break cannot be written"):
             dumps(layer(a="one\ntwo"))

EOF_08d875d82588
: '>>>>> Start Test Output'
python3 -m unittest discover -v -s tests -t .
: '>>>>> End Test Output'
git checkout 08d875d8258839bd1c5ade781e4527702e648b60 tests/test_lines.py tests/test_main.py tests/test_values.py tests/test_writer.py
