#!/bin/bash
set -uxo pipefail
cd /testbed
git config --global --add safe.directory /testbed
cd /testbed
git status
git show
git -c core.fileMode=false diff 668b2cb8d1c532c984ba3fa71774b6ab1921dbc4
git checkout 668b2cb8d1c532c984ba3fa71774b6ab1921dbc4 tests/test_layers.py
git apply -v - <<'EOF_668b2cb8d1c5'
diff --git a/tests/test_layers.py b/tests/test_layers.py
index 60bf2e6..681b908 100644
--- a/tests/test_layers.py
+++ b/tests/test_layers.py
@@ -37,6 +37,24 @@ class ResolveTests(unittest.TestCase):
         layer = loads("[net]\nallow = a\nallow += b\n")
         self.assertEqual(resolve([layer])["net.allow"], ["a", "b"])
 
+    def test_asking_twice(self):
+        layers = [loads("[net]\nallow = a\n"), loads("[net]\nallow += b\n")]
+        self.assertEqual(resolve(layers)["net.allow"], ["a", "b"])
+        self.assertEqual(resolve(layers)["net.allow"], ["a", "b"])
+
+    def test_hosts_do_not_see_each_other(self):
+        site = loads("[net]\nallow = a\n[log]\nto =\n")
+        hosts = [loads(f"[net]\nallow += {name}\n[log]\nto += {name}\n") for name in ("b", "c")]
+        found = [resolve([site, host]) for host in hosts]
+        self.assertEqual([settings["net.allow"] for settings in found], [["a", "b"], ["a", "c"]])
+        self.assertEqual([settings["log.to"] for settings in found], [["b"], ["c"]])
+
+    def test_layers_stay_as_they_were_read(self):
+        site, quay = loads("[net]\nallow = a\n"), loads("[net]\nallow += b\ndeny += c\n")
+        resolve([site, quay, quay])
+        self.assertEqual(site.settings, {"net.allow": ["a"]})
+        self.assertEqual(quay.additions, {"net.allow": ["b"], "net.deny": ["c"]})
+
 
 class ExplainTests(unittest.TestCase):
     def test_all_who_have_a_say(self):
@@ -46,6 +64,11 @@ class ExplainTests(unittest.TestCase):
         )
         self.assertEqual(explain([SITE, quay], "net.host"), [])
 
+    def test_after_the_settings_were_made(self):
+        site, quay = loads("[net]\nallow = a\n", "site"), loads("[net]\nallow += b\n", "quay")
+        resolve([site, quay])
+        self.assertEqual(explain([site, quay], "net.allow")[0], ("site", "=", ["a"]))
+
 
 class SettingsTests(unittest.TestCase):
     def test_text(self):

EOF_668b2cb8d1c5
: '>>>>> Start Test Output'
python3 -m unittest discover -v -s tests -t .
: '>>>>> End Test Output'
git checkout 668b2cb8d1c532c984ba3fa71774b6ab1921dbc4 tests/test_layers.py
