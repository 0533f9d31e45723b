"""`sharepod demo`."""
