"""Programs, actions, runners, policies, records and hazards: how cores exchange partial results."""
