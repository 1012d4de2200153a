"""Alerting: rules from one file, evaluated on gold and telemetry, sent to a Kafka topic and to webhooks.

alerts.toml ─ Rules ─┐
lake, broker ─ Facts ┴─ step ─┬─ Publisher ── topic, exactly once ── Webhook, at least once
                  state ──────┘      └─────── state topic, in the same transaction
"""
