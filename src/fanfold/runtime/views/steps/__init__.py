"""Steps as surfaces show them: one with all there is to be seen of it, and why it is where it is."""
