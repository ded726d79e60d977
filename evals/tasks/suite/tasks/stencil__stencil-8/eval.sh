#!/bin/bash
set -uxo pipefail
cd /testbed
git config --global --add safe.directory /testbed
cd /testbed
git status
git show
git -c core.fileMode=false diff 226abdb4463c6d43b3b92528d110ba031fe4b9f8
git checkout 226abdb4463c6d43b3b92528d110ba031fe4b9f8 tests/test_expander.py tests/test_scanner.py tests/test_settings.py
git apply -v - <<'EOF_226abdb4463c'
diff --git a/tests/test_expander.py b/tests/test_expander.py
index 109f465..17621b2 100644
--- a/tests/test_expander.py
+++ b/tests/test_expander.py
@@ -23,6 +23,24 @@ class ExpandTests(unittest.TestCase):
     def test_filters_apply_to_defaults(self):
         self.assertEqual(expand("${A|upper:-none}", {}), "NONE")
 
+    def test_defaults_are_templates(self):
+        template = "${A:-${B:-${C:-none}}}"
+        self.assertEqual(expand(template, {}), "none")
+        self.assertEqual(expand(template, {"C": "c"}), "c")
+        self.assertEqual(expand(template, {"B": "b", "C": "c"}), "b")
+        self.assertEqual(expand(template, {"A": "a", "B": "b"}), "a")
+
+    def test_text_around_a_reference_in_a_default(self):
+        self.assertEqual(expand("${A:-<${B}> and ${C:-c}}.", {"B": "b"}), "<b> and c.")
+
+    def test_filters_at_both_levels(self):
+        self.assertEqual(expand("${A|quote:-${B|upper}}", {"B": "b"}), '"B"')
+
+    def test_undefined_name_in_a_default(self):
+        self.assertEqual(expand("${A:-${B}}", {"A": "a"}), "a")
+        with self.assertRaisesRegex(UndefinedName, "B is not defined"):
+            expand("${A:-${B}}", {})
+
     def test_names(self):
         self.assertEqual(names("${B} ${A:-1} ${B}"), ["B", "A"])
 
diff --git a/tests/test_scanner.py b/tests/test_scanner.py
index 278684c..4f24816 100644
--- a/tests/test_scanner.py
+++ b/tests/test_scanner.py
@@ -28,6 +28,20 @@ class ScanTests(unittest.TestCase):
         names = [part.name for part in scan("${A:-1}${B:-2}")]
         self.assertEqual(names, ["A", "B"])
 
+    def test_default_with_a_reference(self):
+        self.assertEqual(
+            scan("${A:-${B:-c}}/"), [Reference("A", (), "${B:-c}", 0), "/"]
+        )
+
+    def test_escaped_dollar_in_a_default(self):
+        parts = scan("${A:-${B:-$${b}}!")
+        self.assertEqual(parts, [Reference("A", (), "${B:-$${b}", 0), "!"])
+
+    def test_brace_missing_at_the_end(self):
+        for text in ("${A:-${B}", "${A:-${B:-c}", "${A:-${B"):
+            with self.assertRaisesRegex(TemplateError, "unterminated"):
+                scan(text)
+
     def test_dollar(self):
         self.assertEqual("".join(scan("$$5 and $${x}")), "$5 and ${x}")
 
diff --git a/tests/test_settings.py b/tests/test_settings.py
index daa36c6..4385ca2 100644
--- a/tests/test_settings.py
+++ b/tests/test_settings.py
@@ -25,6 +25,11 @@ class SettingsTests(unittest.TestCase):
             {"host": "example.org", "url": "https://example.org:443/"},
         )
 
+    def test_setting_as_default(self):
+        text = TEXT + "reply = ${REPLY:-${mail.from}}\n"
+        self.assertEqual(load(text)["mail.reply"], "ops@example.org")
+        self.assertEqual(load(text, {"REPLY": "me"})["mail.reply"], "me")
+
     def test_circle(self):
         settings = load("[a]\nx = ${a.y}\ny = ${a.x}\n")
         with self.assertRaisesRegex(CircularReference, "a.x -> a.y -> a.x"):

EOF_226abdb4463c
: '>>>>> Start Test Output'
python3 -m unittest discover -v -s tests -t .
: '>>>>> End Test Output'
git checkout 226abdb4463c6d43b3b92528d110ba031fe4b9f8 tests/test_expander.py tests/test_scanner.py tests/test_settings.py
