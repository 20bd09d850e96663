"""What a run would do, predicted before it begins."""
