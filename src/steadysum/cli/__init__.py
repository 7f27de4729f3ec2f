"""The command `steadysum`: one file per command, no logic of its own. The entry point is cli.main.main."""
