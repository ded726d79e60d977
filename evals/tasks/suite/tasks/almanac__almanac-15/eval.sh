#!/bin/bash
set -uxo pipefail
cd /testbed
git config --global --add safe.directory /testbed
cd /testbed
git status
git show
git -c core.fileMode=false diff ec8587a4fe6fe3acabc0f7e6567d3c81f40023fa
git checkout ec8587a4fe6fe3acabc0f7e6567d3c81f40023fa tests/test_reader.py tests/test_rules.py
git apply -v - <<'EOF_ec8587a4fe6f'
diff --git a/tests/test_reader.py b/tests/test_reader.py
index 81f0057..8c437ef 100644
--- a/tests/test_reader.py
+++ b/tests/test_reader.py
@@ -21,6 +21,10 @@ class ReaderTests(unittest.TestCase):
         self.assertEqual(self.days("daily 2024-01-01 every 9 until 2024-01-19: Ink"), [1, 10, 19])
         self.assertEqual(self.days("monthly 2024-01-01 on Fri nth -1: Pub"), [26])
 
+    def test_last_day_of_every_month(self):
+        self.assertEqual(self.days("monthly 2024-01-31: Rent", "2024-07"), [31])
+        self.assertEqual(self.days("monthly 2024-01-31 times 5: Rent", "2024-05"), [31])
+
     def test_exceptions(self):
         text = "weekly 2024-01-03: Choir\nskip 2024-01-10: Choir\n"
         text += "move 2024-01-17 to 2024-01-18: Choir\n"
diff --git a/tests/test_rules.py b/tests/test_rules.py
index 52e180d..94d239d 100644
--- a/tests/test_rules.py
+++ b/tests/test_rules.py
@@ -51,6 +51,18 @@ class MonthlyTests(unittest.TestCase):
         self.assertEqual(shown(Monthly(parse_day("2023-01-31")), 2), "01-31 02-28")
 
 
+    def test_months_behind_one_that_is_too_short(self):
+        rule = Monthly(parse_day("2023-01-31"))
+        self.assertEqual(shown(rule, 5), "01-31 02-28 03-31 04-30 05-31")
+        rule = Monthly(parse_day("2024-01-30"))
+        self.assertEqual(shown(rule, 4), "01-30 02-29 03-30 04-30")
+
+    def test_last_day_of_a_short_month_is_a_day_like_others(self):
+        for start, days in ("2023-02-28", "02-28 03-28"), ("2023-04-30", "04-30 05-30"):
+            self.assertEqual(shown(Monthly(parse_day(start)), 2), days)
+        self.assertEqual(shown(Monthly(parse_day("2023-11-30"), 3), 3), "11-30 02-29 05-30")
+
+
 class NthWeekdayTests(unittest.TestCase):
     def test_second_tuesday(self):
         self.assertEqual(shown(NthWeekday(NEW_YEAR, 2, 1), 3), "01-09 02-13 03-12")
@@ -72,6 +84,12 @@ class YearlyTests(unittest.TestCase):
         self.assertEqual(years, [2024, 2025, 2026])
         self.assertEqual(shown(Yearly(NEW_YEAR), 2), "01-01 01-01")
 
+    def test_leap_day(self):
+        rule = Yearly(parse_day("2024-02-29"))
+        self.assertEqual(shown(rule, 5), "02-29 02-28 02-28 02-28 02-29")
+        rule = Yearly(parse_day("2024-02-29"), 2)
+        self.assertEqual(shown(rule, 3), "02-29 02-28 02-29")
+
     def test_every_fourth_year(self):
         years = [day.year for day in first(Yearly(NEW_YEAR, 4), 3)]
         self.assertEqual(years, [2024, 2028, 2032])

EOF_ec8587a4fe6f
: '>>>>> Start Test Output'
python3 -m unittest discover -v -s tests -t .
: '>>>>> End Test Output'
git checkout ec8587a4fe6fe3acabc0f7e6567d3c81f40023fa tests/test_reader.py tests/test_rules.py
