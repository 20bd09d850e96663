"""How what a child changed comes home: three-way, all or nothing, with conflicts as data."""
