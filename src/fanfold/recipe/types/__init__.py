"""The types of leaf steps, one module each: what they say of their own, and what that means to the plan."""
