"""Valid records at their most hostile, everyday Delta commands and damage by hand, in lake after lake.

names.py      names with everything in them that somebody might split, escape, sort, cut or render
records.py    records of every stream that are valid by their contract, with such names and extreme values
commands.py   what a user runs on a table, and which rows it has touched
expected.py   what gold must be by the oracles key by key, and what an audit has found
lives.py      one lake: rounds of records, commands between them, rows lost at the end
"""
