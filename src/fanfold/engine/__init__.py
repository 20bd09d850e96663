"""The engine: drives the kernel, performs its commands, forecasts runs."""
