"""What phases add to their steps: summing up what they gave, and looking up what is cited."""
