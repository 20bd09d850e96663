"""Workers on several machines: runs and steps as jobs of Temporal."""
