"""What every store must do, as tests: one suite, run against each of them."""
