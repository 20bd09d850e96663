"""The database as a file: where it is, how it is opened, what its errors mean."""
