"""What people do with runs: start, drive, steer, fork, apply."""
