"""Scripts: what scripted agents say and do, written down beforehand."""
