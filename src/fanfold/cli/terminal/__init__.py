"""How the command line shows things and asks: text, colours, live progress, questions."""
