"""Guard: results that are checked as they are made, healed when they are wrong, and accounted for."""
