"""CEL expressions: what they may name, what they may cost, what they evaluate to."""
