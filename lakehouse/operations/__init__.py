"""Everything around a running lake: what runs, watches, checks, repairs, maintains and copies it."""
