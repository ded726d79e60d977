"""Shell command lines: parsing them, and classifying what they run and change."""
