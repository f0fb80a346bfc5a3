"""Other tools' formats: ``formats`` lists them, ``launch`` writes and reads launch files."""
