"""The ledger of a project: every comparison that was started, looked at, judged or repeated. Nothing here imports torch."""
