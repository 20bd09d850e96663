"""Carts, prices and stock."""

import unittest

from shop import cart, prices, stock


class Shop(unittest.TestCase):
    def test_a_cart_counts_every_piece(self):
        self.assertEqual(cart.total([(3, 2), (5, 1)]), 11)

    def test_a_discount_is_a_percentage(self):
        self.assertEqual(prices.discounted(200, 10), 180)

    def test_what_is_not_there_is_not_enough(self):
        self.assertFalse(stock.enough({"pen": 1}, {"pen": 2}))
