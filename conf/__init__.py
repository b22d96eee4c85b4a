"""The YAML that ships with the project: jobs, models, prices and schemas. Read through importlib.resources; no code."""
