"""Shell command lines: parsing them, and classifying their programs and changes."""
