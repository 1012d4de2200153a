"""Records at their most hostile: valid ones, and anything at all.

names.py      names with everything that somebody might split, escape, sort, cut or render
records.py    records of every stream that are valid by their contract, with such names and extreme values
schemas.py    schemas, both valid and hostile
anything.py   whatever a broker takes, in every format
"""
