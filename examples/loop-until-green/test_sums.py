"""What `sums` must do."""

import unittest

import sums


class Sums(unittest.TestCase):
    def test_add(self):
        self.assertEqual(sums.add(2, 3), 5)
