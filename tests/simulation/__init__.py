"""Lives of a small real lake: what is done to it, what it must then hold, and where it does not.

    python -m tests.simulation --seed 7 --stories 100     new stories; a difference is shrunk and printed
    python -m tests.simulation --story FILE               a kept one

model.py              what a life has done to the lake, and what the lake must hold according to the oracles
compare.py            how the real lake differs from that, in words
world.py              the lake and its clock; services.py: what it runs on
forms.py              the forms of streams, and how each writes its records
stepping.py           a process that runs its layers; writes.py: where it can end, or sleep
actions.py            what can be done to the lake, one line each
repairs.py            what people do; operations.py: what operators do to the whole lake
tables.py             what is done to tables outside the layers
settings_actions.py   changes of settings, and what follows
checks.py             what must hold whatever was done
machine.py            runs and shrinks stories; coverage.py says what none has reached
stories.py            the kept ones, in kept/
"""
