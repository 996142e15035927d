"""The search spaces that ship with `sweep`: one YAML file a figure, table or habit."""
