#!/bin/bash
set -uxo pipefail
cd /testbed
git config --global --add safe.directory /testbed
cd /testbed
git status
git show
git -c core.fileMode=false diff 90706a7bdb30b6c519b511a12dd6ffbabfe2182f
git checkout 90706a7bdb30b6c519b511a12dd6ffbabfe2182f tests/test_agenda.py tests/test_rules.py
git apply -v - <<'EOF_90706a7bdb30'
diff --git a/tests/test_agenda.py b/tests/test_agenda.py
index 2b27397..ecd6e47 100644
--- a/tests/test_agenda.py
+++ b/tests/test_agenda.py
@@ -20,6 +20,13 @@ class AgendaTests(unittest.TestCase):
             "2024-01-11 Thu  Bins\n2024-01-15 Mon  Bins, Rent",
         )
 
+    def test_fortnight_that_begins_on_a_thursday(self):
+        bins = read_almanac("weekly 2024-01-04 on Mon,Thu every 2: Bins")
+        self.assertEqual(
+            agenda(bins, parse_span("2024-01-08..2024-01-28")),
+            "2024-01-15 Mon  Bins\n2024-01-18 Thu  Bins",
+        )
+
     def test_free(self):
         found = free(read_almanac(HOME), parse_span("2024-01-09..2024-01-16"))
         self.assertEqual(
diff --git a/tests/test_rules.py b/tests/test_rules.py
index 2da2bbb..511baab 100644
--- a/tests/test_rules.py
+++ b/tests/test_rules.py
@@ -30,6 +30,19 @@ class WeeklyTests(unittest.TestCase):
         self.assertEqual(shown(Weekly(thursday, (0, 3)), 3), "01-04 01-08 01-11")
         self.assertEqual(shown(Weekly(thursday, every=2), 3), "01-04 01-18 02-01")
 
+    def test_every_other_week_begins_within_a_week(self):
+        thursday = parse_day("2024-01-04")
+        self.assertEqual(shown(Weekly(thursday, (0, 3), 2), 4), "01-04 01-15 01-18 01-29")
+        self.assertEqual(shown(Weekly(thursday, (2,), 2), 2), "01-17 01-31")
+
+    def test_every_third_week_begins_on_a_sunday(self):
+        sunday = parse_day("2024-01-07")
+        self.assertEqual(shown(Weekly(sunday, (0, 6), 3), 4), "01-07 01-22 01-28 02-12")
+
+    def test_whole_weeks_are_counted_over_the_turn_of_the_year(self):
+        friday = parse_day("2023-12-22")
+        self.assertEqual(shown(Weekly(friday, (4,), 2), 3), "12-22 01-05 01-19")
+
 
 class MonthlyTests(unittest.TestCase):
     def test_day_of_the_start(self):

EOF_90706a7bdb30
: '>>>>> Start Test Output'
python3 -m unittest discover -v -s tests -t .
: '>>>>> End Test Output'
git checkout 90706a7bdb30b6c519b511a12dd6ffbabfe2182f tests/test_agenda.py tests/test_rules.py
