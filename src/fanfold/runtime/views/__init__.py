"""What surfaces show: documents, drawings, the report."""
