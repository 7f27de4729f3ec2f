"""Events of a run: kept, measured, drawn, exported."""
