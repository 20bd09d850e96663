"""What is in the storehouse."""


def enough(stock, wanted):
    return all(stock.get(name, 0) >= count for name, count in wanted.items())
