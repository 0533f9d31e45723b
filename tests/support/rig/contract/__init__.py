"""What our code takes for granted of an API server: each promise one test, for the double and for real servers alike.

`connection` says how one is reached, `there` what a test has of it; the other modules hold the promises, a class each.
A test module gives a fixture `connected` and imports the classes that its server is held to.
"""
