"""Evaluate alerting rules on gold and telemetry, and send alerts to Kafka and webhooks.

alerts.toml ─ Rules ─┐
lake, broker ─ Facts ┴─ step ─┬─ Publisher ── topic, exactly once ── Webhook, at least once
                  state ──────┘      └─────── state topic, in the same transaction
"""
