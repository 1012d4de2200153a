"""Lives of a small real lake: what is done to it, what it must then hold, and in what it does not.

    python -m tests.simulation --seed 7 --stories 100     new stories; a difference is shrunk and printed
    python -m tests.simulation --story FILE               one that was kept

model.py              what a life has done to the lake, and what the lake must hold by the oracles
compare.py            in what the real lake differs from that, in words
world.py              the lake and its clock; services.py: what it runs on
forms.py              the forms of streams, and how each writes its records
stepping.py           a process that runs its layers; writes.py: where it can end, or sleep
actions.py            what can be done to it, one line each
repairs.py            what people do; operations.py: what operators do to all of it
tables.py             what is done to tables past the layers
settings_actions.py   settings that are changed, and what follows
checks.py             what must hold whatever was done
machine.py            runs and shrinks stories; coverage.py says what none has reached
stories.py            those that are kept, in kept/
"""
