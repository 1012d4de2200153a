"""Simulated histories of a small real lake: the actions, the expected contents, and any differences.

    python -m tests.simulation --seed 7 --stories 100     new stories; a difference is shrunk and printed
    python -m tests.simulation --story FILE               a kept story

model.py              the history of a lake, and its contents according to the oracles
compare.py            the real lake's differences from these contents, in words
world.py              the lake and its clock; services.py: its services
forms.py              the forms of streams, and how they encode records
stepping.py           a process that runs its layers; writes.py: where it can be killed or suspended
actions.py            actions on the lake, one line each
repairs.py            users' actions; operations.py: operators' actions on the whole lake
tables.py             actions on tables outside the layers
settings_actions.py   changes of settings, and the necessary rebuilds
checks.py             conditions that must hold after any actions
machine.py            generates, runs and shrinks stories; coverage.py: what stories have reached and missed
stories.py            the kept stories, in kept/
"""
