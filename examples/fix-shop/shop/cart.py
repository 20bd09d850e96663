"""What a customer wants to buy."""


def total(lines):
    return sum(price for price, quantity in lines)
