#!/bin/bash
set -uxo pipefail
cd /testbed
git config --global --add safe.directory /testbed
cd /testbed
git status
git show
git -c core.fileMode=false diff 416560f807cd89350bf985391088aa96afb857a8
git checkout 416560f807cd89350bf985391088aa96afb857a8 tests/test_allocation.py tests/test_reader.py
git apply -v - <<'EOF_416560f807cd'
diff --git a/tests/test_allocation.py b/tests/test_allocation.py
index a143e73..6a7fa12 100644
--- a/tests/test_allocation.py
+++ b/tests/test_allocation.py
@@ -20,6 +20,25 @@ class SplitTests(unittest.TestCase):
         self.assertEqual(shares[0], Decimal("0.00"))
         self.assertEqual(len(shares), 4)
 
+    def test_cents_that_are_left_over(self):
+        self.assertEqual(split(Decimal("100.00"), [1, 1, 1]), amounts("33.34", "33.33", "33.33"))
+        self.assertEqual(split(Decimal("0.05"), [1, 1]), amounts("0.03", "0.02"))
+
+    def test_shares_add_up(self):
+        for text in ("0.01", "0.07", "19.99", "100.00", "-0.05", "-100.00"):
+            for weights in ([1, 1, 1], [3, 2, 2], [1] * 7, [5, 0, 1, 1]):
+                self.assertEqual(sum(split(Decimal(text), weights)), Decimal(text))
+
+    def test_nobody_is_a_cent_off(self):
+        bill, weights = Decimal("20.03"), [7, 5, 3, 2, 1, 1, 0]
+        for share, weight in zip(split(bill, weights), weights):
+            self.assertLess(abs(share - bill * weight / sum(weights)), Decimal("0.01"))
+
+    def test_absent_member_gets_no_spare_cent(self):
+        self.assertEqual(split(Decimal("0.02"), [0, 1, 1, 1, 0]).count(Decimal("0.01")), 2)
+        self.assertEqual(split(Decimal("-100.00"), [0, 1, 1, 1])[0], 0)
+        self.assertEqual(split(Decimal("100.00"), [1, 1, 1, 0])[-1], 0)
+
     def test_refund(self):
         self.assertEqual(split(Decimal("-5.00"), [3, 1]), amounts("-3.75", "-1.25"))
 
diff --git a/tests/test_reader.py b/tests/test_reader.py
index 504026b..4b23b47 100644
--- a/tests/test_reader.py
+++ b/tests/test_reader.py
@@ -26,6 +26,12 @@ class ReaderTests(unittest.TestCase):
         self.assertEqual(journal.balance("expense:ann"), Decimal("40.00"))
         self.assertEqual(journal.balance("asset:bank"), Decimal("-860.00"))
 
+    def test_bill_that_does_not_divide(self):
+        shares = "".join(f"  share expense:{name} 1\n" for name in ("ann", "ben", "cem"))
+        journal = read_journal("2023-03-05 Gas\n  pay asset:bank 100.00\n" + shares)
+        self.assertEqual(journal.balance("asset:bank"), Decimal("-100.00"))
+        self.assertEqual(journal.balance("expense:ann"), Decimal("33.34"))
+
     def test_posting_without_entry(self):
         with self.assertRaisesRegex(JournalSyntaxError, "line 1: posting"):
             read_journal("  asset:bank 1.00\n")

EOF_416560f807cd
: '>>>>> Start Test Output'
python3 -m unittest discover -v -s tests -t .
: '>>>>> End Test Output'
git checkout 416560f807cd89350bf985391088aa96afb857a8 tests/test_allocation.py tests/test_reader.py
