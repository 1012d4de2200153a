"""Alerts: rules in one file, judged on gold and on telemetry, told to a Kafka topic and to webhooks.

rules.toml ── Rules ─┐
lake, broker ─ Facts ┴─ step ─┬─ Publisher ── topic, exactly once ── Webhook, at least once
                  state ──────┘      └─────── state topic, in the same transaction
"""
