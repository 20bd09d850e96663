"""What a host knows of a run besides the kernel's state: values, blobs, names, what was frozen."""
