#!/bin/bash
set -uxo pipefail
cd /testbed
git config --global --add safe.directory /testbed
cd /testbed
git status
git show
git -c core.fileMode=false diff e460078449821b5fc4ba49ae077c8eedc73edf42
git checkout e460078449821b5fc4ba49ae077c8eedc73edf42 tests/test_offers.py tests/test_reader.py
git apply -v - <<'EOF_e46007844982'
diff --git a/tests/test_offers.py b/tests/test_offers.py
index 0851614..930e005 100644
--- a/tests/test_offers.py
+++ b/tests/test_offers.py
@@ -6,8 +6,11 @@ CATALOGUE = Catalogue(
     [
         Product("BUN", "Currant bun", 180, "baked"),
         Product("COCOA", "Cup of cocoa", 301, "hot"),
+        Product("COLA", "Cola", 200, "drinks", deposit=25),
+        Product("JUICE", "Carton of juice", 120, "drinks"),
         Product("ROLL", "Bread roll", 60, "baked"),
         Product("TEA", "Cup of tea", 250, "hot"),
+        Product("WATER", "Water", 100, "drinks", deposit=50),
     ]
 )
 
@@ -24,6 +27,11 @@ class PercentOffTests(unittest.TestCase):
         offer = PercentOff("hot", 20)
         self.assertEqual(offer.saving(basket(("TEA", 2), ("BUN", 1)).lines), 100)
 
+    def test_deposits_are_not_reduced(self):
+        offer = PercentOff("drinks", 50)
+        self.assertEqual(offer.saving(basket(("COLA", 3)).lines), 300)
+        self.assertEqual(offer.saving(basket(("WATER", 1), ("JUICE", 1)).lines), 110)
+
     def test_rounded_line_by_line(self):
         offer = PercentOff("hot", 50)
         self.assertEqual(offer.saving(basket(("COCOA", 1), ("COCOA", 1)).lines), 302)
@@ -48,6 +56,14 @@ class MultiBuyTests(unittest.TestCase):
     def test_the_cheapest_are_for_nothing(self):
         self.assertEqual(self.offer.saving(basket(("BUN", 2), ("ROLL", 1)).lines), 60)
 
+    def test_deposits_are_not_for_nothing(self):
+        offer = MultiBuy("drinks", take=3, pay=2)
+        self.assertEqual(offer.saving(basket(("COLA", 3)).lines), 200)
+
+    def test_deposits_do_not_make_a_bottle_dear(self):
+        offer = MultiBuy("drinks", take=2, pay=1)
+        self.assertEqual(offer.saving(basket(("JUICE", 1), ("WATER", 1)).lines), 100)
+
     def test_not_an_offer(self):
         with self.assertRaisesRegex(ValueError, "take 2, pay 2"):
             MultiBuy("baked", 2, 2)
@@ -62,6 +78,10 @@ class TotalTests(unittest.TestCase):
         offers = [PercentOff("hot", 80), MultiBuy("hot", 2, 1)]
         self.assertEqual(basket(("TEA", 2)).total(offers), 0)
 
+    def test_given_away_but_for_the_deposit(self):
+        gift = basket(("COLA", 2))
+        self.assertEqual(gift.total([PercentOff("drinks", 100)]), gift.deposits())
+
     def test_on_the_receipt(self):
         offers = [PercentOff("hot", 20, "Happy hour"), MultiBuy("baked", 3, 2)]
         self.assertEqual(
diff --git a/tests/test_reader.py b/tests/test_reader.py
index ab54f35..5e1eb84 100644
--- a/tests/test_reader.py
+++ b/tests/test_reader.py
@@ -44,10 +44,10 @@ class ReaderTests(unittest.TestCase):
 
 
 class CommandLineTests(unittest.TestCase):
-    def run_main(self, *items):
+    def run_main(self, *items, shop=SHOP):
         with tempfile.TemporaryDirectory() as folder:
             path = Path(folder, "shop.txt")
-            path.write_text(SHOP, encoding="utf-8")
+            path.write_text(shop, encoding="utf-8")
             out, err = io.StringIO(), io.StringIO()
             with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                 code = main([str(path), *items])
@@ -63,3 +63,11 @@ class CommandLineTests(unittest.TestCase):
 
     def test_unknown_product(self):
         self.assertEqual(self.run_main("PIE")[0], 1)
+
+    def test_deposit_stays(self):
+        shop = "product COLA 2.00+0.25 drinks\nstock COLA 9\nmultibuy drinks 3 2\n"
+        _, out, _ = self.run_main("6xCOLA", shop=shop)
+        self.assertEqual(
+            [line.split()[-1] for line in out.splitlines()],
+            ["13.50", "-4.00", "-" * 32, "9.50", "1.50"],
+        )

EOF_e46007844982
: '>>>>> Start Test Output'
python3 -m unittest discover -v -s tests -t .
: '>>>>> End Test Output'
git checkout e460078449821b5fc4ba49ae077c8eedc73edf42 tests/test_offers.py tests/test_reader.py
