"""What things cost."""


def discounted(price, percent):
    return price * percent
