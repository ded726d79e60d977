#!/bin/bash
set -uxo pipefail
cd /testbed
git config --global --add safe.directory /testbed
cd /testbed
git status
git show
git -c core.fileMode=false diff fbc56bbae570f07813ae95b7d67862e3f7a2eaf9
git checkout fbc56bbae570f07813ae95b7d67862e3f7a2eaf9 tests/test_stock.py tests/test_till.py
git apply -v - <<'EOF_fbc56bbae570'
diff --git a/tests/test_stock.py b/tests/test_stock.py
index 53da8ed..ddae0ab 100644
--- a/tests/test_stock.py
+++ b/tests/test_stock.py
@@ -34,6 +34,18 @@ class StockTests(unittest.TestCase):
             self.stock.withdraw([("TEA", 3), ("TEA", 3)])
         self.assertEqual((caught.exception.wanted, caught.exception.left), (3, 2))
 
+    def test_refused_as_a_whole(self):
+        with self.assertRaisesRegex(OutOfStock, "BUN: 3 wanted, 2 left"):
+            self.stock.withdraw([("TEA", 2), ("BUN", 3)])
+        self.assertEqual([self.stock.count(code) for code in ("TEA", "BUN")], [5, 2])
+
+    def test_lines_of_one_product_are_refused_as_a_whole(self):
+        with self.assertRaises(OutOfStock):
+            self.stock.withdraw([("BUN", 1), ("TEA", 4), ("TEA", 2)])
+        self.assertEqual([self.stock.count(code) for code in ("TEA", "BUN")], [5, 2])
+        self.stock.withdraw([("TEA", 4), ("TEA", 1)])
+        self.assertEqual(self.stock.count("TEA"), 0)
+
     def test_to_reorder(self):
         self.stock.put("PIE", 0)
         self.assertEqual(self.stock.to_reorder(5), ["PIE", "BUN"])
diff --git a/tests/test_till.py b/tests/test_till.py
index 57512ac..70c28ea 100644
--- a/tests/test_till.py
+++ b/tests/test_till.py
@@ -70,3 +70,9 @@ class SaleTests(unittest.TestCase):
     def test_empty_basket(self):
         with self.assertRaisesRegex(ValueError, "empty"):
             sell(basket(), Stock())
+
+    def test_refused_sale_can_be_corrected(self):
+        stock = Stock({"TEA": 2, "BUN": 1})
+        with self.assertRaises(OutOfStock):
+            sell(basket(("TEA", 2), ("BUN", 2)), stock)
+        self.assertIn("6.80", sell(basket(("TEA", 2), ("BUN", 1)), stock))

EOF_fbc56bbae570
: '>>>>> Start Test Output'
python3 -m unittest discover -v -s tests -t .
: '>>>>> End Test Output'
git checkout fbc56bbae570f07813ae95b7d67862e3f7a2eaf9 tests/test_stock.py tests/test_till.py
