#!/bin/bash
set -uxo pipefail
cd /testbed
git config --global --add safe.directory /testbed
cd /testbed
git status
git show
git -c core.fileMode=false diff 732ebdbe5a33a48c766031166a6fb155dab9e087
git checkout 732ebdbe5a33a48c766031166a6fb155dab9e087 tests/test_sheets.py tests/test_slots.py
git apply -v - <<'EOF_732ebdbe5a33'
diff --git a/tests/test_sheets.py b/tests/test_sheets.py
index 5403b83..7afb6cb 100644
--- a/tests/test_sheets.py
+++ b/tests/test_sheets.py
@@ -26,6 +26,22 @@ class SheetTests(unittest.TestCase):
         self.calendar.book("Cleaning", at("06:00"), at("07:00"))
         self.assertNotIn("Cleaning", day_sheet(self.calendar, HOURS))
 
+    def test_buffer_is_not_free(self):
+        calendar = Calendar(Room("Studio", buffer=15))
+        calendar.book("Yoga", at("10:00"), at("11:00"))
+        calendar.book("Choir", at("11:20"), at("12:00"))
+        self.assertEqual(
+            day_sheet(calendar, HOURS),
+            "09:00-09:45 free\n10:00-11:00 Yoga\n11:20-12:00 Choir\n12:15-17:00 free",
+        )
+
+    def test_closure_next_to_free_time(self):
+        calendar = Calendar(Room("Studio", buffer=15))
+        calendar.close(at("12:00"), at("13:00"))
+        self.assertEqual(
+            day_sheet(calendar, HOURS), "09:00-12:00 free\n13:00-17:00 free"
+        )
+
 
 class LoadTests(unittest.TestCase):
     def test_share_of_the_hours(self):
diff --git a/tests/test_slots.py b/tests/test_slots.py
index 7965045..404cc75 100644
--- a/tests/test_slots.py
+++ b/tests/test_slots.py
@@ -30,6 +30,28 @@ class FirstFreeTests(unittest.TestCase):
         self.assertEqual(first_free(room, 30, HOURS), span("10:15-10:45"))
         self.assertEqual(first_free(room, 45, HOURS), span("12:15-13:00"))
 
+    def test_empty_day_with_a_buffer(self):
+        room = calendar(buffer=15)
+        self.assertEqual(first_free(room, 60, HOURS), span("09:00-10:00"))
+        self.assertEqual(first_free(room, 480, HOURS), HOURS)
+
+    def test_buffer_before_the_first_and_after_the_last_booking(self):
+        room = calendar(buffer=15, booked=["10:00-16:00"])
+        self.assertEqual(first_free(room, 45, HOURS), span("09:00-09:45"))
+        room = calendar(buffer=15, booked=["09:15-16:00"])
+        self.assertEqual(first_free(room, 45, HOURS), span("16:15-17:00"))
+
+    def test_booking_that_ends_before_the_hours(self):
+        room = calendar(buffer=15, booked=["08:00-09:00"])
+        self.assertEqual(first_free(room, 60, HOURS), span("09:15-10:15"))
+        room = calendar(buffer=15, booked=["08:00-08:50"])
+        self.assertEqual(first_free(room, 60, HOURS), span("09:05-10:05"))
+
+    def test_closures_have_no_buffer(self):
+        room = calendar(buffer=15)
+        room.close(at("09:00"), at("11:00"))
+        self.assertEqual(first_free(room, 60, HOURS), span("11:00-12:00"))
+
     def test_closures_are_not_offered(self):
         room = calendar()
         room.close(at("09:00"), at("11:00"))

EOF_732ebdbe5a33
: '>>>>> Start Test Output'
python3 -m unittest discover -v -s tests -t .
: '>>>>> End Test Output'
git checkout 732ebdbe5a33a48c766031166a6fb155dab9e087 tests/test_sheets.py tests/test_slots.py
